{{- /* What the chart sets itself: a second setting of the same would be dropped, or break the pod. */}}
{{- define "affinityd.chartsOwn" -}}
{{- $remedies := dict
      "--listen" "; set listenAddress instead"
      "--listen-plan" "; set listenAddress and plan.enabled instead"
      "--socket" "; set socket.hostPath instead"
      "--reserved-cpus" "; set settings.reservedCpus instead"
      "--scan-interval" "; set settings.scanInterval instead"
      "--job-series" "; set settings.jobSeries instead"
      "--log-format" "; set settings.logFormat instead"
      "--pod-resources" "; set kubernetes.podResources instead"
      "--nri" "; set kubernetes.nri.enabled instead"
      "--nri-namespaces" "; set kubernetes.nri.namespaces instead"
      "--nri-without-request" "; set kubernetes.nri.withoutRequest instead"
      "--nri-mount" "; set kubernetes.nri.enabled and socket.enabled instead"
      "--node-name" ": the Node's name; leave it out" }}
{{- range .Values.extraArgs }}
{{- $flag := index (splitList "=" .) 0 }}
{{- with get $remedies $flag }}
{{- fail (printf "extraArgs: %s is the chart's own%s" $flag .) }}
{{- end }}
{{- end }}

{{- /* Each flag has a variable, for which the same holds. */}}
{{- $variables := dict }}
{{- range $flag, $remedy := $remedies }}
{{- $_ := set $variables (printf "AFFINITYD%s" (trimPrefix "-" $flag | upper | replace "-" "_")) $remedy }}
{{- end }}
{{- if include "affinityd.runtimeClassName" . }}
{{- range list "NVIDIA_VISIBLE_DEVICES" "NVIDIA_DRIVER_CAPABILITIES" }}
{{- $_ := set $variables . "; leave it out, or leave runtimeClassName and audit.runtimeClassName empty" }}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- $name := .name }}
{{- with get $variables $name }}
{{- fail (printf "extraEnv: %s is the chart's own%s" $name .) }}
{{- end }}
{{- end }}

{{- $volumes := dict "socket" ", or set socket.hostPath" "cgroups" "" "pod-resources" "" "nri" ", or set kubernetes.nri.socketFolder" }}
{{- range .Values.extraVolumes }}
{{- if hasKey $volumes .name }}
{{- fail (printf "extraVolumes: %s is the chart's own; give yours another name%s" .name (get $volumes .name)) }}
{{- end }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
{{- if hasKey $volumes .name }}
{{- fail (printf "extraVolumeMounts: %s, at %s, is the chart's own volume; mount one of extraVolumes" .name .mountPath) }}
{{- end }}
{{- if hasPrefix (printf "%s/" (include "affinityd.socketFolder" $)) (printf "%s/" (clean .mountPath)) }}
{{- fail (printf "extraVolumeMounts: %s is the socket's folder or in it; mount %s elsewhere" .mountPath .name) }}
{{- end }}
{{- end }}

{{- $labels := fromYaml (include "affinityd.ownLabels" .) }}
{{- $_ := set $labels "app.kubernetes.io/component" "metrics" }}
{{- $metrics := .Values.metrics }}
{{- range $value, $chosen := dict
      "commonLabels" (list $labels .Values.commonLabels)
      "podLabels" (list (fromYaml (include "affinityd.ownPodLabels" .)) .Values.podLabels)
      "metrics.podMonitor.labels" (list $labels $metrics.podMonitor.labels)
      "metrics.prometheusRule.labels" (list $labels $metrics.prometheusRule.labels)
      "dashboards.labels" (list $labels .Values.dashboards.labels) }}
{{- range $name, $_ := index $chosen 1 }}
{{- if hasKey (index $chosen 0) $name }}
{{- fail (printf "%s: %s is the chart's own; leave it out" $value $name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
