//! A settings file with every setting and its default.

use serde_json::Value;

use super::ProviderSchema;
use super::document::HEADER;
use super::effective::in_a_file;
use super::table::Entry;
use crate::sheet::wrap;

impl ProviderSchema {
    /// A commented settings file that changes nothing.
    pub(crate) fn defaults(&self) -> String {
        let provider = &self.provider;
        let mut text =
            format!("# The settings of kubelet-authenticator-{provider}, each with its default.\n");
        for (key, value) in HEADER {
            text.extend([key, ": ", value, "\n"]);
        }
        let mut section = "";
        for entry in self.entries() {
            let (of, key) = entry.split();
            if of != section {
                section = of;
                text.extend(["\n", section, ":\n"]);
            } else if section.is_empty() {
                text.push('\n');
            }
            let margin = if section.is_empty() { "" } else { "  " };
            let default = self.default_of(entry);
            for line in about(entry, default.is_none()).lines() {
                text.extend([margin, "# ", line, "\n"]);
            }
            let value = in_a_file(entry.form, &default.unwrap_or_default());
            text.extend([margin, key, ": ", &in_a_line(&value), "\n"]);
        }
        text
    }
}

/// The comment of a setting.
fn about(entry: Entry, is_unset: bool) -> String {
    let mut words = format!("{}.", entry.help);
    if is_unset && !entry.otherwise.is_empty() {
        words.extend([" Default: ", entry.otherwise, "."]);
    }
    let mut text = String::new();
    wrap("", 0, &words, &mut text);
    text
}

fn in_a_line(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(Value::to_string).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}
