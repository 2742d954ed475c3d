{{- /* Values that contradict each other: the render ends with the remedy. */}}
{{- define "affinityd.contradictions" -}}
{{- range list "image.pullPolicy" "global" "commonLabels" "commonAnnotations" "podLabels" "podAnnotations" "settings.logFormat"
      "audit.enabled" "kubernetes.kubeletRoot" "kubernetes.nri.withoutRequest" "kubernetes.nri.socketFolder" "listenAddress"
      "socket.enabled" "socket.hostPath" "plan" "affinity" "updateStrategy.type" "resources" "serviceAccount.create"
      "networkPolicy" "metrics.podMonitor" "metrics.prometheusRule.runbookUrl" "dashboards" }}
{{- if not (include "affinityd.valueAt" (list $ .)) }}
{{- fail (printf "%s has no value: set it; or, if you reuse the values of an earlier chart, give --reset-then-reuse-values instead of --reuse-values" .) }}
{{- end }}
{{- end }}
{{- /* Values of 0.2 that jobs or metrics may depend on: each with the value that changes nothing, and the advice for any other. */}}
{{- range list
      (list "ports.http" "9465" "the port is always 9465: leave ports.http out, and let scrapers use 9465")
      (list "ports.plan" "9466" "the port is always 9466: leave ports.plan out, and give jobs 9466 in AFFINITYD_URL")
      (list "plan.annotations" "" "set commonAnnotations")
      (list "metrics.service.annotations" "" "set commonAnnotations")
      (list "serviceAccount.annotations" "" "set commonAnnotations")
      (list "metrics.serviceMonitor.enabled" "" "set metrics.podMonitor, with the same values")
      (list "hostPID" (ternary "true" "" .Values.audit.enabled) "set audit.enabled: true to scan processes, or leave it out")
      (list "enforce.mode" "" "the daemon pins no process that runs: leave it out, and set kubernetes.nri to place containers as they are created")
      (list "kubernetes.rules" "" "leave it out, and set kubernetes.nri.namespaces, with choices for each") }}
{{- $value := include "affinityd.valueAt" (list $ (index . 0)) | trimAll "\"" }}
{{- if not (has $value (list "" "[]" "{}" "false" "off" "observe" (index . 1))) }}
{{- fail (printf "%s is removed; %s" (index . 0) (index . 2)) }}
{{- end }}
{{- end }}
{{- if not (or .Values.socket.enabled .Values.plan.enabled) }}
{{- fail "socket.enabled and plan.enabled are both false: no pod could reach the daemon; enable one of them" }}
{{- end }}
{{- $pace := include "affinityd.valueAt" (list . "updateStrategy.rollingUpdate.maxUnavailable") }}
{{- if and (eq .Values.updateStrategy.type "RollingUpdate") (has $pace (list "" "0" "0%")) }}
{{- fail (printf "updateStrategy.rollingUpdate.maxUnavailable is %q: no daemon could ever be replaced; set at least 1, or 10%%" $pace) }}
{{- end }}
{{- if and .Values.gpuNodeLabels .Values.affinity.nodeAffinity }}
{{- fail "gpuNodeLabels and affinity.nodeAffinity both choose nodes; set gpuNodeLabels: [] and say all of it in affinity.nodeAffinity" }}
{{- end }}
{{- if and .Values.audit.enabled (eq (include "affinityd.scanInterval" .) "off") }}
{{- fail "audit.enabled is true and settings.scanInterval is off: the audit would scan no process; leave scanInterval empty, or set audit.enabled: false" }}
{{- end }}
{{- if and .Values.kubernetes.nri.namespaces (not .Values.kubernetes.nri.enabled) }}
{{- fail "kubernetes.nri.namespaces names namespaces, and kubernetes.nri.enabled is false; set it to true, or leave namespaces empty" }}
{{- end }}
{{- with .Values.settings }}
{{- $looks := ne (include "affinityd.scanInterval" $) "off" }}
{{- if not (has (kindOf .reservedCpus) (list "string" "invalid")) }}
{{- fail (printf "settings.reservedCpus is the number %v, and YAML reads 010 as 8: quote it; on the command line, --set-string" .reservedCpus) }}
{{- end }}
{{- range regexFindAll "[0-9]+-[0-9]+" (default "" .reservedCpus) -1 }}
{{- $ends := splitList "-" . }}
{{- if gt (atoi (first $ends)) (atoi (last $ends)) }}
{{- fail (printf "settings.reservedCpus has %s, from a number to a lower one; write the lower first" .) }}
{{- end }}
{{- end }}
{{- if and .scanInterval (ne (toString .scanInterval) "off") (not $.Values.audit.enabled) }}
{{- fail (printf "settings.scanInterval is %v, and audit.enabled is false; set audit.enabled: true, or leave scanInterval empty" .scanInterval) }}
{{- end }}
{{- if and .jobSeries (not $looks) }}
{{- fail (printf "settings.jobSeries is %v, but no process is scanned; set audit.enabled: true, or jobSeries: 0" .jobSeries) }}
{{- end }}
{{- if and $.Values.kubernetes.podResources (not (or $looks $.Values.kubernetes.nri.enabled)) }}
{{- fail "kubernetes.podResources is true, but no process is scanned; set audit.enabled or kubernetes.nri.enabled: true, or kubernetes.podResources: false" }}
{{- end }}
{{- if and $.Values.audit.hostMemory (not $looks) }}
{{- fail "audit.hostMemory is true, but no process is scanned; set audit.enabled: true, or audit.hostMemory: false" }}
{{- end }}
{{- end }}
{{- include "affinityd.namesNothing" . }}
{{- include "affinityd.chartsOwn" . }}
{{- end }}
