{{- define "nap.fullname" -}}
{{- if contains "nap" .Release.Name }}{{ .Release.Name | trunc 63 | trimSuffix "-" }}{{ else }}{{ printf "%s-nap" .Release.Name | trunc 63 | trimSuffix "-" }}{{ end -}}
{{- end }}

{{- define "nap.selector" -}}
app.kubernetes.io/name: nap
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "nap.labels" -}}
{{ include "nap.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "nap.serviceAccountName" -}}
{{ .Values.serviceAccount.name | default (include "nap.fullname" .) }}
{{- end }}

{{- define "nap.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- /* Deny, Warn or Off. */ -}}
{{- define "nap.requestsPolicy" -}}
{{- if .Values.requestsPolicy.mode }}{{ .Values.requestsPolicy.mode }}{{ else if eq .Values.defaultNodePools "Auto" }}Warn{{ else }}Off{{ end -}}
{{- end }}
