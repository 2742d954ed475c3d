{{- /* The value at a path, (list $ "audit.enabled"), as YAML; empty: there is none, or it is null. */}}
{{- define "affinityd.valueAt" -}}
{{- $value := (index . 0).Values }}
{{- range splitList "." (index . 1) }}
{{- $value = ternary $value dict (kindIs "map" $value) }}
{{- $value = ternary (get $value .) nil (hasKey $value .) }}
{{- end }}
{{- if not (kindIs "invalid" $value) }}{{ toYaml $value }}{{ end }}
{{- end }}

{{- define "affinityd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* 55: "-metrics" is appended, and a Service's name has at most 63 characters. */}}
{{- define "affinityd.fullname" -}}
{{- $name := include "affinityd.name" . }}
{{- $both := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) }}
{{- default $both .Values.fullnameOverride | trunc 55 | trimSuffix "-" }}
{{- end }}

{{- define "affinityd.serviceAccountName" -}}
{{- default (ternary (include "affinityd.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name }}
{{- end }}

{{- define "affinityd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "affinityd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* part-of is affinityd for every release: the monitor names its job by it. */}}
{{- define "affinityd.ownPodLabels" -}}
{{ include "affinityd.selectorLabels" . }}
app.kubernetes.io/part-of: affinityd
{{- end }}

{{- define "affinityd.ownLabels" -}}
{{ include "affinityd.ownPodLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "affinityd.podLabels" -}}
{{- $own := fromYaml (include "affinityd.ownPodLabels" .) }}
{{- toYaml (mergeOverwrite (dict) .Values.commonLabels .Values.podLabels $own) }}
{{- end }}

{{- define "affinityd.labels" -}}
{{- toYaml (mergeOverwrite (dict) .Values.commonLabels (fromYaml (include "affinityd.ownLabels" .))) }}
{{- end }}

{{- define "affinityd.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- /* The annotations of an object: commonAnnotations, and the annotations given for this object. */}}
{{- define "affinityd.annotations" -}}
{{- with mergeOverwrite (dict) (index . 0).Values.commonAnnotations (default dict (index . 1)) }}
{{- printf "\n  annotations:\n%s" (toYaml . | indent 4) }}
{{- end }}
{{- end }}

{{- /* global.imageRegistry takes the place of the host that the repository begins with. */}}
{{- define "affinityd.image" -}}
{{- $repository := .Values.image.repository }}
{{- with .Values.global.imageRegistry }}
{{- $repository = print (trimSuffix "/" .) "/" (regexReplaceAllLiteral "^(localhost|[^/]*[.:][^/]*)/" $repository "") }}
{{- end }}
{{- with .Values.image }}
{{- if .digest }}{{ $repository }}@{{ .digest }}{{ else }}{{ $repository }}:{{ default $.Chart.AppVersion .tag }}{{ end }}
{{- end }}
{{- end }}

{{- /* The security context of an unprivileged container: of the test, and of the daemon. */}}
{{- define "affinityd.securityContext" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
readOnlyRootFilesystem: true
{{- end }}

{{- define "affinityd.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ include "affinityd.nobody" . }}
runAsGroup: {{ include "affinityd.nobody" . }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- /* The class that brings NVML; empty: the cluster's default. */}}
{{- define "affinityd.runtimeClassName" -}}
{{- .Values.runtimeClassName | default (ternary .Values.audit.runtimeClassName "" .Values.audit.enabled) }}
{{- end }}

{{- /* The scan interval: seconds; empty: the daemon's default; off without the node's pids, as a scan would find nothing. */}}
{{- define "affinityd.scanInterval" -}}
{{- $chosen := .Values.settings.scanInterval }}
{{- if or (not .Values.audit.enabled) (kindIs "bool" $chosen) }}off{{ else if $chosen }}{{ $chosen }}{{ end }}
{{- end }}

{{- define "affinityd.nobody" -}}
65532
{{- end }}

{{- /* The user of the daemon and of its socket's folder: only root has capabilities, and kubelet's and the runtime's sockets. */}}
{{- define "affinityd.user" -}}
{{- if or .Values.audit.hostMemory .Values.kubernetes.podResources .Values.kubernetes.nri.enabled }}0{{ else }}{{ include "affinityd.nobody" . }}{{ end }}
{{- end }}

{{- /* Namespaces with their choices, as --nri-namespaces has them: a,b mode=socket nics=ucx+nccl */}}
{{- define "affinityd.nriNamespaces" -}}
{{- $namespaces := list }}
{{- range $name, $choices := .namespaces }}
{{- $isName := kindIs "string" $choices }}{{/* of a list, as 0.2 had it */}}
{{- $words := list (ternary $choices $name $isName) }}
{{- range $choice, $value := ternary dict $choices $isName }}
{{- $words = append $words (printf "%s=%s" $choice (toString $value | replace "," "+")) }}
{{- end }}
{{- $namespaces = append $namespaces (join " " $words) }}
{{- end }}
{{- join "," $namespaces }}
{{- end }}

{{- /* The security context of the daemon's container. */}}
{{- define "affinityd.daemonSecurityContext" -}}
{{- if eq (include "affinityd.user" .) "0" -}}
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  {{- if .Values.audit.hostMemory }}
  add: [SYS_PTRACE]
  {{- end }}
readOnlyRootFilesystem: true
runAsNonRoot: false
runAsUser: 0
runAsGroup: 0
{{- if .Values.audit.hostMemory }}
seccompProfile:
  type: Unconfined
{{- end }}
{{- else -}}
{{ include "affinityd.securityContext" . }}
{{- end }}
{{- end }}

{{- /* Labels by which Prometheus and Grafana find objects: (list $ LABELS). */}}
{{- define "affinityd.monitoringLabels" -}}
{{- $own := fromYaml (include "affinityd.labels" (index . 0)) }}
{{- toYaml (mergeOverwrite (dict) (index . 1) $own) }}
{{- end }}

{{- /* The URL by which a pod of any namespace reaches its own node's daemon. */}}
{{- define "affinityd.url" -}}
http://{{ include "affinityd.fullname" . }}.{{ include "affinityd.namespace" . }}:9466
{{- end }}

{{- /* The path of the socket's folder in the daemon's container. It is the node's path, by which NRI mounts the folder. */}}
{{- define "affinityd.socketFolder" -}}
{{ ternary .Values.socket.hostPath "/run/affinityd" .Values.socket.enabled }}
{{- end }}

{{- /* Whether the node's cgroups are mounted: for the cpusets of other pods. */}}
{{- define "affinityd.cgroups" -}}
{{- if or .Values.audit.enabled .Values.kubernetes.nri.enabled }}true{{ end }}
{{- end }}
