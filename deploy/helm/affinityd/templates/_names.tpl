{{- /* Names of the right type with impossible values. */}}
{{- define "affinityd.namesNothing" -}}
{{- $repository := default "" .Values.image.repository }}
{{- if not (regexMatch "^([a-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+((/|[._-]+)[a-z0-9]+)*$" $repository) }}
{{- fail (printf "image.repository is %q: name HOST/REPOSITORY alone, in lower case; the tag goes to image.tag, a digest to image.digest" $repository) }}
{{- end }}
{{- $folder := default "" .Values.socket.hostPath }}
{{- if or (hasSuffix ".sock" $folder) (not (regexMatch "^/([^/.][^/]*/)*[^/]*affinityd[^/]*$" $folder)) }}
{{- fail (printf "socket.hostPath is %q: the init step gives it to the daemon's user, so name an absolute folder, not a socket, whose last part has affinityd in it, such as /run/affinityd" $folder) }}
{{- end }}
{{- end }}
