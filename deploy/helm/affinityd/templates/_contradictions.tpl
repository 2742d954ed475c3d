{{- /* Values that contradict each other: the render ends with the remedy. */}}
{{- define "affinityd.contradictions" -}}
{{- if not .Values.kubernetes }}
{{- fail "kubernetes has no value, as if those of an earlier chart are reused; give --reset-then-reuse-values instead of --reuse-values" }}
{{- end }}
{{- if not (or .Values.socket.enabled .Values.plan.enabled) }}
{{- fail "socket.enabled and plan.enabled are both false: no pod could reach the daemon; enable one of them" }}
{{- end }}
{{- if eq (int .Values.ports.http) (int .Values.ports.plan) }}
{{- fail (printf "ports.http and ports.plan are both %v; give each a port of its own" .Values.ports.http) }}
{{- end }}
{{- with .Values.updateStrategy }}
{{- $rolling := default dict .rollingUpdate }}
{{- if eq .type "RollingUpdate" }}
{{- $surge := toString (default 0 $rolling.maxSurge) }}
{{- if not (has $surge (list "0" "0%")) }}
{{- fail (printf "updateStrategy.rollingUpdate.maxSurge is %s: two daemons cannot own one socket; leave it at 0 and set the pace by maxUnavailable" $surge) }}
{{- end }}
{{- if has (toString $rolling.maxUnavailable) (list "0" "0%") }}
{{- fail (printf "updateStrategy.rollingUpdate.maxUnavailable is %v: without a surge no daemon could ever be replaced; set at least 1, or 10%%" $rolling.maxUnavailable) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and .Values.gpuNodeLabels .Values.affinity.nodeAffinity }}
{{- fail "gpuNodeLabels and affinity.nodeAffinity both choose nodes; set gpuNodeLabels: [] and say all of it in affinity.nodeAffinity" }}
{{- end }}
{{- if and .Values.metrics.podMonitor.enabled .Values.metrics.serviceMonitor.enabled }}
{{- fail "metrics.podMonitor.enabled and metrics.serviceMonitor.enabled would scrape every daemon twice; enable one of them" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled (not .Values.metrics.service.enabled) }}
{{- fail "metrics.serviceMonitor needs the Service; set metrics.service.enabled: true, or use metrics.podMonitor" }}
{{- end }}
{{- if .Values.audit.enabled }}
{{- if eq (toString .Values.hostPID) "false" }}
{{- fail "audit.enabled is true and hostPID is false: the audit needs the node's pids; set hostPID: true or leave it out, or set audit.enabled: false" }}
{{- end }}
{{- if eq (include "affinityd.scanInterval" .) "off" }}
{{- fail "audit.enabled is true and settings.scanInterval is off: the audit would scan no process; leave scanInterval empty, or set audit.enabled: false" }}
{{- end }}
{{- end }}
{{- if and .Values.kubernetes.nri.namespaces (not .Values.kubernetes.nri.enabled) }}
{{- fail "kubernetes.nri.namespaces names namespaces, and kubernetes.nri.enabled is false; set it to true, or leave namespaces empty" }}
{{- end }}
{{- with .Values.settings }}
{{- $looks := ne (include "affinityd.scanInterval" $) "off" }}
{{- if and .scanInterval (ne (toString .scanInterval) "off") (not (include "affinityd.hostPID" $)) }}
{{- fail (printf "settings.scanInterval is %v, and audit.enabled is false; set audit.enabled: true, or leave scanInterval empty" .scanInterval) }}
{{- end }}
{{- if and .jobSeries (not $looks) }}
{{- fail (printf "settings.jobSeries is %v, but no process is scanned; set audit.enabled: true and leave scanInterval empty, or set jobSeries: 0" .jobSeries) }}
{{- end }}
{{- if and $.Values.kubernetes.podResources (not (or $looks $.Values.kubernetes.nri.enabled)) }}
{{- fail "kubernetes.podResources is true, but no process is scanned; set audit.enabled: true and leave settings.scanInterval empty, or kubernetes.nri.enabled: true, or set kubernetes.podResources: false" }}
{{- end }}
{{- if and $.Values.audit.hostMemory (not $looks) }}
{{- fail "audit.hostMemory is true, but no process is scanned; set audit.enabled: true and leave settings.scanInterval empty, or set audit.hostMemory: false" }}
{{- end }}
{{- end }}
{{- include "affinityd.namesNothing" . }}
{{- include "affinityd.chartsOwn" . }}
{{- end }}
