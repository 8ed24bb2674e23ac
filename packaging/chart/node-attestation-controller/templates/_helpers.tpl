{{/* manifest: prints a file from packaging/deploy, with the namespace of the release. The argument is a list: the context and the
file's name. */}}
{{- define "node-attestation-controller.manifest" -}}
{{- $text := (index . 0).Files.Get (printf "deploy/%s" (index . 1)) | required (printf "deploy/%s is missing in the chart" (index . 1)) -}}
{{- replace "node-attestation-system" (index . 0).Release.Namespace $text -}}
{{- end }}

{{/* rights: prints a file from packaging/rbac, with the controller's service account as the subject, and with the Role for the Lease in
the controller's namespace. With watchNamespace, the permissions for namespaced objects are in a Role in that namespace. Without
allSecrets, the permission to read all Secrets is omitted. */}}
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
