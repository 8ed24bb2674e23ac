{{/* manifest: a file of packaging/deploy, in the namespace of the release. Its argument: the context, and the file's name. */}}
{{- define "node-attestation-controller.manifest" -}}
{{- $text := (index . 0).Files.Get (printf "deploy/%s" (index . 1)) | required (printf "deploy/%s is missing in the chart" (index . 1)) -}}
{{- replace "node-attestation-system" (index . 0).Release.Namespace $text -}}
{{- end }}

{{/* rights: a file of packaging/rbac, with the controller's service account as the subject, and its Lease in its namespace. With
watchNamespace, the rights on objects of namespaces are a Role there. Without allSecrets, the right to read all Secrets is
missing. */}}
{{- define "node-attestation-controller.rights" -}}
{{- $namespace := (index . 0).Release.Namespace -}}
{{- $watched := (index . 0).Values.watchNamespace -}}
{{- $allSecrets := (index . 0).Values.allSecrets -}}
{{- $subject := dict "kind" "ServiceAccount" "name" "node-attestation-controller" "namespace" $namespace -}}
{{- $text := (index . 0).Files.Get (printf "rbac/%s" (index . 1)) | required (printf "rbac/%s is missing in the chart" (index . 1)) -}}
{{- range splitList "\n---\n" $text }}
{{- $object := fromYaml . }}
{{- if hasKey $object "subjects" }}
{{- $_ := set $object "subjects" (list $subject) }}
{{- end }}
{{- if eq (dig "metadata" "namespace" "" $object) "default" }}
{{- $_ := set $object.metadata "namespace" $namespace }}
{{- end }}
{{- if and (not $allSecrets) (hasKey $object "rules") (eq $object.metadata.name "node-attestation-controller-management") }}
{{- $rules := list }}
{{- range $rule := $object.rules }}
{{- if not (has "secrets" $rule.resources) }}
{{- $rules = append $rules $rule }}
{{- end }}
{{- end }}
{{- $_ := set $object "rules" $rules }}
{{- end }}
{{- if and $watched (eq $object.metadata.name "node-attestation-controller-management") }}
{{- $_ := set $object "kind" (trimPrefix "Cluster" $object.kind) }}
{{- $_ := set $object.metadata "namespace" $watched }}
{{- if hasKey $object "roleRef" }}
{{- $_ := set $object.roleRef "kind" "Role" }}
{{- end }}
{{- end }}
---
{{ toYaml $object }}
{{- end }}
{{- end }}
