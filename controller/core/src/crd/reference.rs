//! The list of all fields in the definitions, for docs/custom-resources.md.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use super::{manifests, schema};

const PREAMBLE: &str = "# Custom resources

This page lists the custom resources of the project, with every field. `kubectl explain` prints the same descriptions:

<!-- run by: the_documented_commands_and_the_tpm_tutorial_attest_nodes -->
```console
$ kubectl explain kubeletauthentications.spec
```

The API server fills in the defaults, and rejects an object that exceeds a limit or breaks a rule. A field without a default and
without the word *required* is optional.

A test writes this page from the schemas: `UPDATE=1 cargo test -p node-attestation-core --lib crd::reference`.
";

/// The named patterns.
const PATTERNS: [(&str, &str); 5] = [
    (schema::SUBDOMAIN, "a DNS subdomain"),
    (
        schema::NODE_OR_CONTROL_PLANE,
        "a DNS subdomain or `ControlPlane`",
    ),
    (schema::LABEL, "a DNS label"),
    (schema::SHA256, "64 lower-case hexadecimal digits"),
    (schema::VISIBLE, "visible ASCII characters without spaces"),
];

/// Returns the text of the page.
fn page() -> String {
    let all = manifests();
    let mut page = format!(
        "{PREAMBLE}\n| kind | API group | version | scope | short name |\n| --- | --- | --- | --- | --- |\n"
    );
    for definition in &all {
        let spec = &definition.spec;
        let kind = &spec.names.kind;
        let anchor = kind.to_lowercase();
        let _ = writeln!(
            page,
            "| [{kind}](#{anchor}) | `{}` | `{}` | {} | `{}` |",
            spec.group,
            spec.versions[0].name,
            spec.scope,
            spec.names.short_names.iter().flatten().next().unwrap(),
        );
    }
    for definition in &all {
        section(definition, &mut page);
    }
    page
}

fn section(definition: &CustomResourceDefinition, page: &mut String) {
    let version = &definition.spec.versions[0];
    let schema = version.schema.as_ref().unwrap();
    let root = schema.open_api_v3_schema.as_ref().unwrap();
    let kind = &definition.spec.names.kind;
    let _ = write!(
        page,
        "\n## {kind}\n\n{}\n",
        root.description.as_deref().unwrap()
    );
    let mut rules = Vec::new();
    rules_of("", root, &mut rules);
    for part in ["spec", "status"] {
        let Some(schema) = root.properties.as_ref().unwrap().get(part) else {
            continue;
        };
        let _ = write!(
            page,
            "\n### {kind} {part}\n\n{}\n\n| field | type | default | limits | description |\n\
             | --- | --- | --- | --- | --- |\n",
            schema.description.as_deref().unwrap()
        );
        rows("", schema, page);
        rules_below(part, schema, &mut rules);
    }
    if !rules.is_empty() {
        let _ = write!(
            page,
            "\n### {kind} rules\n\n| field | message of the API server |\n| --- | --- |\n"
        );
        for (field, message) in rules {
            let message = cell(&message).replace('<', "\\<");
            let _ = writeln!(page, "| `{field}` | {message} |");
        }
    }
    let columns = version.additional_printer_columns.iter().flatten();
    let _ = write!(
        page,
        "\n### {kind} columns\n\n| column of `kubectl get` | content |\n| --- | --- |\n"
    );
    for column in columns {
        let wide = match column.priority {
            Some(1..) => ", with `-o wide`",
            _ => "",
        };
        let content = match &column.description {
            Some(description) => cell(description),
            None => format!("`{}`", column.json_path.trim_start_matches('.')),
        };
        let _ = writeln!(
            page,
            "| `{}`{wide} | {content} |",
            column.name.to_uppercase()
        );
    }
}

/// Returns one row for each field below the schema.
fn rows(path: &str, schema: &JSONSchemaProps, page: &mut String) {
    let required = schema.required.as_deref().unwrap_or_default();
    for (name, field) in schema.properties.iter().flatten() {
        let path = match path {
            "" => name.clone(),
            path => format!("{path}.{name}"),
        };
        let default = match &field.default {
            _ if required.contains(name) => "required".to_owned(),
            Some(default) => value(&default.0),
            None => String::new(),
        };
        let description = field.description.as_deref().unwrap();
        let _ = writeln!(
            page,
            "| `{path}` | {} | {default} | {} | {} |",
            kind(field),
            limits(field).join("; "),
            cell(description)
        );
        let (below, inner) = inner(&path, field);
        rows(&below, inner, page);
    }
}

/// Returns the schema that contains the nested fields of a field, and the path to that schema.
fn inner<'a>(path: &str, field: &'a JSONSchemaProps) -> (String, &'a JSONSchemaProps) {
    match (&field.items, &field.additional_properties) {
        (Some(JSONSchemaPropsOrArray::Schema(items)), _) => (format!("{path}[]"), items),
        (_, Some(JSONSchemaPropsOrBool::Schema(values))) => (format!("{path}.<key>"), values),
        _ => (path.to_owned(), field),
    }
}

fn kind(schema: &JSONSchemaProps) -> String {
    match schema.type_.as_deref().unwrap() {
        "string" if schema.format.as_deref() == Some("date-time") => "time".to_owned(),
        "array" => format!("list of {}", kind(inner("", schema).1)),
        "object" if schema.additional_properties.is_some() => {
            format!("map of {}", kind(inner("", schema).1))
        }
        other => other.to_owned(),
    }
}

/// Returns the text of a default value.
fn value(default: &Value) -> String {
    match default {
        Value::String(text) => format!("`{text}`"),
        Value::Object(fields) if !fields.is_empty() => "as its fields".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            format!("`{default}`")
        }
    }
}

fn limits(schema: &JSONSchemaProps) -> Vec<String> {
    let mut limits = Vec::new();
    if let Some(values) = &schema.enum_ {
        let values: Vec<_> = values.iter().map(|one| value(&one.0)).collect();
        limits.push(values.join(", "));
    }
    limits.extend(range(schema.minimum, schema.maximum, ""));
    // The pattern already shows the length.
    if schema.pattern.as_deref() != Some(schema::SHA256) {
        limits.extend(range(schema.min_length, schema.max_length, " characters"));
    }
    limits.extend(range(schema.min_items, schema.max_items, " entries"));
    limits.extend(range(
        schema.min_properties,
        schema.max_properties,
        " entries",
    ));
    if let Some(pattern) = &schema.pattern {
        let known = PATTERNS.iter().find(|(known, _)| known == pattern);
        limits.push(match known {
            Some((_, name)) => (*name).to_owned(),
            None => format!("`{}`", cell(pattern)),
        });
    }
    match schema.x_kubernetes_list_type.as_deref() {
        Some("set") => limits.push("each once".to_owned()),
        Some("map") => {
            let keys = schema.x_kubernetes_list_map_keys.as_deref();
            limits.push(format!("one for each `{}`", keys.unwrap().join("`, `")));
        }
        _ => {}
    }
    let (_, values) = inner("", schema);
    if !std::ptr::eq(values, schema) {
        let values = limits_of_values(values);
        limits.extend(values);
    }
    limits
}

/// Returns the limits of the entries of a list or a map.
fn limits_of_values(values: &JSONSchemaProps) -> Option<String> {
    let limits = limits(values);
    (!limits.is_empty()).then(|| format!("each: {}", limits.join(", ")))
}

fn range<N: std::fmt::Display + PartialEq>(
    least: Option<N>,
    most: Option<N>,
    of: &str,
) -> Option<String> {
    match (least, most) {
        (Some(least), Some(most)) if least == most => Some(format!("{least}{of}")),
        (Some(least), Some(most)) => Some(format!("{least} to {most}{of}")),
        (Some(least), None) => Some(format!("at least {least}{of}")),
        (None, Some(most)) => Some(format!("at most {most}{of}")),
        (None, None) => None,
    }
}

/// Collects the rules of a schema and of all nested schemas, each with the field that it reports as invalid.
fn rules_below(path: &str, schema: &JSONSchemaProps, rules: &mut Vec<(String, String)>) {
    rules_of(path, schema, rules);
    for (name, field) in schema.properties.iter().flatten() {
        rules_below(&format!("{path}.{name}"), field, rules);
    }
    let (below, values) = inner(path, schema);
    if !std::ptr::eq(values, schema) {
        rules_below(&below, values, rules);
    }
}

fn rules_of(path: &str, schema: &JSONSchemaProps, rules: &mut Vec<(String, String)>) {
    for rule in schema.x_kubernetes_validations.iter().flatten() {
        let field = rule.field_path.as_deref().unwrap_or_default();
        let field = format!("{path}{field}");
        let message = rule.message.clone().unwrap();
        rules.push((field.trim_start_matches('.').to_owned(), message));
    }
}

/// Escapes the text for a table cell.
fn cell(text: &str) -> String {
    text.replace("\n\n", " ").replace('|', "\\|")
}

#[test]
fn the_custom_resources_page_lists_every_field() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/custom-resources.md");
    let expected = page();
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).unwrap();
    }

    assert!(
        fs::read_to_string(path).unwrap_or_default() == expected,
        "docs/custom-resources.md is stale: run this test with UPDATE=1"
    );
}
