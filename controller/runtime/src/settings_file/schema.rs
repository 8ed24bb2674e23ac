//! The schema of a custom resource without its rules: applies defaults and checks values as the API server does.

use node_attestation_core::crd;
use regex_lite::Regex;
use serde_json::{Map, Value, json};

use super::{Fault, removed};

/// The keywords that this module or the rules support, or that do not restrict a value. A test checks that the schema
/// has no other keywords, so that no keyword is ignored.
#[cfg(test)]
pub(super) const KEYWORDS: [&str; 22] = [
    "additionalProperties",
    "default",
    "description",
    "enum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "pattern",
    "properties",
    "required",
    "title",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-validations",
];

/// The schema of a whole `KubeletAuthentication`.
pub(super) fn of_authentication() -> Value {
    let definition = crd::manifests().into_iter().next();
    let versions = definition.map(|definition| definition.spec.versions);
    let schema = versions.into_iter().flatten().find_map(|one| one.schema);
    let mut schema = serde_json::to_value(schema).unwrap_or_default();
    let schema_of_object = schema.get_mut("openAPIV3Schema");
    let mut schema = schema_of_object.map(Value::take).unwrap_or_default();
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        // A new object has no status.
        properties.remove("status");
        // Every object has these fields, so the schema in the definition does not contain them.
        for name in ["apiVersion", "kind"] {
            properties.insert(name.to_owned(), json!({"type": "string"}));
        }
        properties.insert("metadata".to_owned(), metadata());
    }
    schema
}

/// The metadata fields that all objects have. Only the values of the fields that users set are checked, because the API
/// server sets the other fields.
fn metadata() -> Value {
    const OTHERS: [&str; 11] = [
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    ];
    let any = OTHERS.map(|name| (name.to_owned(), json!({})));
    let mut properties = Map::from_iter(any);
    for name in ["name", "namespace"] {
        properties.insert(name.to_owned(), json!({"type": "string", "maxLength": 253}));
    }
    for name in ["annotations", "labels"] {
        let texts = json!({"type": "object", "additionalProperties": {"type": "string"}});
        properties.insert(name.to_owned(), texts);
    }
    json!({"type": "object", "required": ["name"], "properties": properties})
}

/// Removes each field of the schema whose value is null, because null means that the field is missing. None of this
/// project's fields can be null.
pub(super) fn drop_nulls(schema: &Value, value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|name, value| !value.is_null() || of_field(schema, name).is_none());
    }
    for_each_part(schema, value, drop_nulls);
}

/// Fills in the defaults, outermost first, because a default can have fields with defaults.
pub(super) fn fill_defaults(schema: &Value, value: &mut Value) {
    if let (Value::Object(fields), Some(Value::Object(properties))) =
        (&mut *value, schema.get("properties"))
    {
        for (name, schema) in properties {
            if let Some(default) = schema.get("default") {
                fields.entry(name).or_insert_with(|| default.clone());
            }
        }
    }
    for_each_part(schema, value, fill_defaults);
}

fn for_each_part(schema: &Value, value: &mut Value, act: fn(&Value, &mut Value)) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if let Some(schema) = of_field(schema, name) {
                    act(schema, value);
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                act(schema.get("items").unwrap_or(&Value::Null), item);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The schema for a field, or for a value in a map.
pub(super) fn of_field<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let properties = schema.get("properties");
    let property = properties.and_then(|properties| properties.get(name));
    property.or_else(|| schema.get("additionalProperties"))
}

/// The fields and items of a value, with their paths and schemas.
pub(super) fn parts<'a>(
    schema: &'a Value,
    value: &'a Value,
    path: &str,
) -> Vec<(String, &'a Value, &'a Value)> {
    match value {
        Value::Object(fields) => {
            let known = fields.iter().filter_map(|(name, value)| {
                Some((inside(path, name), of_field(schema, name)?, value))
            });
            known.collect()
        }
        Value::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Value::Null);
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| (format!("{path}[{index}]"), schema, item))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

fn inside(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Checks the types and limits of the value and all nested values.
pub(super) fn check(schema: &Value, value: &Value, faults: &mut Vec<Fault>) {
    check_at(schema, value, "", faults);
}

fn check_at(schema: &Value, value: &Value, path: &str, faults: &mut Vec<Fault>) {
    let mut fault = |message: String| faults.push(Fault::new(path, message));
    if let Some(kind) = text_of(schema, "type").filter(|kind| !is_of(value, kind)) {
        let quotes = if kind == "string" && !value.is_array() && !value.is_object() {
            ": put it in quotes"
        } else {
            ""
        };
        fault(format!("must be of type {kind}{quotes}"));
        return;
    }
    if let Some(allowed) = schema.get("enum").and_then(Value::as_array)
        && !allowed.contains(value)
    {
        let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
        fault(format!("{value} is not one of {}", allowed.join(", ")));
    }
    match value {
        Value::String(text) => of_text(schema, text, &mut fault),
        Value::Number(number) => of_number(schema, number.as_f64(), &mut fault),
        Value::Array(items) => {
            of_size(
                schema,
                items.len(),
                ["minItems", "maxItems"],
                "items",
                &mut fault,
            );
            of_list(schema, items, path, faults);
        }
        Value::Object(fields) => {
            let limits = ["minProperties", "maxProperties"];
            of_size(schema, fields.len(), limits, "entries", &mut fault);
            of_fields(schema, fields, path, faults);
        }
        Value::Null | Value::Bool(_) => {}
    }
    for (path, schema, value) in parts(schema, value, path) {
        check_at(schema, value, &path, faults);
    }
}

fn text_of<'a>(schema: &'a Value, keyword: &str) -> Option<&'a str> {
    schema.get(keyword).and_then(Value::as_str)
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    }
}

fn of_text(schema: &Value, text: &str, fault: &mut impl FnMut(String)) {
    let length = text.chars().count();
    of_size(
        schema,
        length,
        ["minLength", "maxLength"],
        "characters",
        fault,
    );
    if let Some(pattern) = text_of(schema, "pattern") {
        // A test compiles every pattern in the schema.
        let matches = Regex::new(pattern).is_ok_and(|pattern| pattern.is_match(text));
        if !matches {
            fault(format!("{text:?} does not match {pattern}"));
        }
    }
}

fn of_number(schema: &Value, number: Option<f64>, fault: &mut impl FnMut(String)) {
    let limit = |keyword| schema.get(keyword).and_then(Value::as_f64);
    let (least, most) = (limit("minimum"), limit("maximum"));
    if let Some(least) = least.filter(|least| number.is_none_or(|number| number < *least)) {
        fault(format!("must be at least {least}"));
    }
    if let Some(most) = most.filter(|most| number.is_none_or(|number| number > *most)) {
        fault(format!("must be at most {most}"));
    }
}

fn of_size(
    schema: &Value,
    size: usize,
    [least, most]: [&str; 2],
    what: &str,
    fault: &mut impl FnMut(String),
) {
    let limit = |keyword| {
        let limit = schema.get(keyword).and_then(Value::as_u64);
        limit.and_then(|limit| usize::try_from(limit).ok())
    };
    if let Some(least) = limit(least).filter(|least| size < *least) {
        fault(format!("must have at least {least} {what}, but has {size}"));
    }
    if let Some(most) = limit(most).filter(|most| size > *most) {
        fault(format!("must have at most {most} {what}, but has {size}"));
    }
}

/// Checks that a set has no duplicate items, and that no two items in a map have the same keys.
fn of_list(schema: &Value, items: &[Value], path: &str, faults: &mut Vec<Fault>) {
    let keys = schema.get("x-kubernetes-list-map-keys");
    let keys = keys.and_then(Value::as_array);
    let key_of = |item: &Value| match keys {
        Some(keys) => {
            let names = keys.iter().filter_map(Value::as_str);
            names.map(|name| item.get(name).cloned()).collect()
        }
        None => vec![Some(item.clone())],
    };
    if !matches!(
        text_of(schema, "x-kubernetes-list-type"),
        Some("set" | "map")
    ) {
        return;
    }
    let mut seen = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let key = key_of(item);
        if seen.contains(&key) {
            faults.push(Fault::new(
                format!("{path}[{index}]"),
                "is a duplicate".to_owned(),
            ));
        }
        seen.push(key);
    }
}

/// Checks that all required fields exist, and that there are no unknown fields.
fn of_fields(schema: &Value, fields: &Map<String, Value>, path: &str, faults: &mut Vec<Fault>) {
    let required = schema.get("required").and_then(Value::as_array);
    for name in required.into_iter().flatten().filter_map(Value::as_str) {
        if !fields.contains_key(name) {
            faults.push(Fault::new(inside(path, name), "is required"));
        }
    }
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return;
    };
    for name in fields.keys().filter(|name| !properties.contains_key(*name)) {
        let field = inside(path, name);
        let message = if let Some(replacement) = removed::replacement(&field) {
            format!("was removed: {replacement}")
        } else {
            let known: Vec<_> = properties.keys().map(String::as_str).collect();
            format!("is not a field; the fields are {}", known.join(", "))
        };
        faults.push(Fault::new(field, message));
    }
}
