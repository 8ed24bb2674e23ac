//! Test objects that a tenant can write, and the log lines of a thread.

use serde_json::{Value, json};

mod log;

pub use log::ThreadLog;

/// The nesting depth. The limit of `serde_json` is 128.
const DEPTH: usize = 200;

/// Values that are nested 200 levels deep, as an array and as an object, a long value, and values of each type.
pub fn hostile_values() -> Vec<Value> {
    let nested = |wrap: fn(Value) -> Value| (0..DEPTH).fold(Value::Null, |inner, _| wrap(inner));
    vec![
        nested(|inner| json!([inner])),
        nested(|inner| json!({ "a": inner })),
        json!("a".repeat(16 * 1024)),
        json!([7]),
        json!({"kind": 1, "name": {}}),
        json!(7),
        json!(true),
        Value::Null,
    ]
}

/// More values than one object of any kind can have in a list or a watch.
pub fn many_values() -> Value {
    let members = (0..70_000).map(|number| (format!("a{number}"), json!("")));
    Value::Object(members.collect())
}

/// A string with twice the size of an object that etcd accepts.
pub fn long_text() -> Value {
    json!("a".repeat(3 * 1024 * 1024))
}

/// The variants of the object in which one value is replaced with one of `values`, each with the location of the value
/// as a JSON pointer.
pub fn with_each_value(object: &Value, values: &[Value]) -> Vec<(String, Value)> {
    let mut places = vec![String::new()];
    places_in(object, "", &mut places);
    let mut all = Vec::new();
    for place in places {
        for value in values {
            let mut changed = object.clone();
            if let Some(there) = changed.pointer_mut(&place) {
                *there = value.clone();
                all.push((place.clone(), changed));
            }
        }
    }
    all
}

/// The variants of the object in which `long` is added before or after one text, which is a value or the name of a
/// member. Each variant has the location of the text as a JSON pointer.
pub fn with_each_text_long(object: &Value, long: &str) -> Vec<(String, Value)> {
    let longer = |text: &str| [format!("{text}{long}"), format!("{long}{text}")];
    let mut places = vec![String::new()];
    places_in(object, "", &mut places);
    let mut all = Vec::new();
    for place in places {
        let there = object.pointer(&place);
        if let Some(Value::String(text)) = there {
            for text in longer(text) {
                let mut changed = object.clone();
                if let Some(there) = changed.pointer_mut(&place) {
                    *there = json!(text);
                }
                all.push((place.clone(), changed));
            }
        } else if let Some(Value::Object(fields)) = there {
            for (name, value) in fields {
                for longer in longer(name) {
                    let mut changed = object.clone();
                    if let Some(Value::Object(fields)) = changed.pointer_mut(&place) {
                        fields.remove(name);
                        fields.insert(longer, value.clone());
                    }
                    all.push((format!("{place}/{name}"), changed));
                }
            }
        }
    }
    all
}

fn places_in(value: &Value, at: &str, places: &mut Vec<String>) {
    let escaped = |key: &String| key.replace('~', "~0").replace('/', "~1");
    let inner: Vec<(String, &Value)> = match value {
        Value::Object(fields) => {
            let fields = fields.iter();
            fields.map(|(key, value)| (escaped(key), value)).collect()
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, value)| (index.to_string(), value))
                .collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    };
    for (key, value) in inner {
        let place = format!("{at}/{key}");
        places.push(place.clone());
        places_in(value, &place, places);
    }
}
