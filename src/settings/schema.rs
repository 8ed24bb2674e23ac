//! A JSON Schema of the settings file, from the table of settings.

use serde_json::{Map, Value, json};

use super::ProviderSchema;
use super::document::HEADER;
use super::table::{Domain, Entry, Form};

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

impl ProviderSchema {
    /// The JSON Schema of the settings file.
    ///
    /// A file that it rejects is invalid. A run checks some values further: ports, addresses.
    pub(crate) fn json_schema(&self) -> Value {
        let mut properties = Map::new();
        for (key, value) in HEADER {
            properties.insert(key.to_owned(), json!({ "const": value }));
        }
        for provider in self.others() {
            let description = format!("The settings of kubelet-authenticator-{provider}");
            let other = json!({ "type": ["object", "null"], "description": description });
            properties.insert(provider.to_owned(), other);
        }
        let own = self.provider.as_str();
        if self.sections().any(|section| section == own) {
            properties.insert(own.to_owned(), section());
        }
        for entry in self.entries() {
            let (of, key) = entry.split();
            let value = of_entry(entry, self.default_of(entry));
            if of.is_empty() {
                properties.insert(key.to_owned(), value);
                continue;
            }
            let section = properties
                .entry(of)
                .or_insert_with(section)
                .get_mut("properties");
            match section.and_then(Value::as_object_mut) {
                Some(section) => drop(section.insert(key.to_owned(), value)),
                None => drop(properties.insert(of.to_owned(), shared(key, value))),
            }
        }
        json!({
            "$schema": DIALECT,
            "title": format!("The settings of kubelet-authenticator-{own}"),
            "type": "object",
            "required": HEADER.map(|(key, _)| key),
            "properties": properties,
            "additionalProperties": false,
        })
    }
}

/// A section that is read strictly.
fn section() -> Value {
    json!({
        "type": ["object", "null"],
        "properties": {},
        "additionalProperties": false,
    })
}

/// A section of another provider, of which this one reads one key.
fn shared(key: &str, value: Value) -> Value {
    let properties: Map<_, _> = [(key.to_owned(), value)].into_iter().collect();
    json!({ "type": ["object", "null"], "properties": properties })
}

/// The schema of one value. An empty text and null count as unset.
fn of_entry(entry: Entry, default: Option<String>) -> Value {
    let mut schema = Map::new();
    let mut add = |key: &str, value: Value| drop(schema.insert(key.to_owned(), value));
    add("description", entry.help.into());
    if let Some(text) = default {
        add("default", super::effective::in_a_file(entry.form, &text));
    }
    let numbers = match entry.domain {
        Domain::Range(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Domain::Any | Domain::Pattern(..) | Domain::Names(_) => json!({ "type": "integer" }),
    };
    match entry.form {
        Form::Text => {
            add("type", json!(["string", "null"]));
            match entry.domain {
                Domain::Pattern(pattern, length) => {
                    add("pattern", format!("^({pattern})?$").into());
                    add("maxLength", length.into());
                }
                Domain::Names(names) => {
                    let names = names().into_iter().map(Value::from);
                    add("enum", names.chain([json!(""), Value::Null]).collect());
                }
                Domain::Any | Domain::Range(..) => {}
            }
        }
        Form::Number => {
            if let Value::Object(members) = numbers {
                schema.extend(members);
            }
        }
        Form::Numbers => {
            add("type", json!(["array", "null"]));
            add("items", numbers);
            add("minItems", 1.into());
            add("uniqueItems", true.into());
        }
    }
    schema.into()
}
