//! The effective settings, each with its source.

use std::collections::BTreeMap;

use serde_json::Value;

use super::table::{Entry, Form};
use super::{ProviderSchema, Sources, read};
use crate::failure::Failure;

/// An effective setting.
#[derive(Debug, Clone)]
pub(crate) struct Effective {
    pub(crate) entry: Entry,
    /// The value in the format of a settings file; `None` if the setting has no value and no default.
    pub(crate) value: Option<Value>,
    /// The source of the value.
    pub(crate) source: String,
}

/// Returns every setting, in the order of the table.
///
/// # Errors
///
/// The same errors as for [`Settings::load`](super::Settings::load).
pub(crate) fn effective(
    sources: Sources<'_>,
    schema: &ProviderSchema,
) -> Result<Vec<Effective>, Failure> {
    let mut given: BTreeMap<&str, (String, String)> = BTreeMap::new();
    let fault = read(sources, schema, &mut |source, values| {
        let source = source.to_string();
        for (name, text) in values.0 {
            given.insert(name, (text, source.clone()));
        }
    });
    if let Some(fault) = fault {
        return Err(fault.into());
    }
    let effective = schema.entries().map(|entry| {
        let (text, source) = match given.remove(entry.name) {
            Some((text, source)) => (Some(text), source),
            None => (schema.default_of(entry), "default".to_owned()),
        };
        Effective {
            entry,
            value: text.map(|text| in_a_file(entry.form, &text)),
            source,
        }
    });
    Ok(effective.collect())
}

/// The value in the format of a settings file.
fn in_a_file(form: Form, text: &str) -> Value {
    let number = |text: &str| text.trim().parse::<u64>().map_or(Value::Null, Value::from);
    match form {
        Form::Text => text.into(),
        Form::Number => number(text),
        Form::Numbers => text.split(',').map(number).collect(),
    }
}
