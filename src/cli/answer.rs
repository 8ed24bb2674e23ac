//! The output of commands other than `credential`.

use std::borrow::Cow;
use std::io::{self, ErrorKind, Write as _};

use kubelet_attestation::text::{is_invisible, visible_json, visible_lines};
use serde_json::Value;

use crate::failure::{Code, Failure};

/// Writes `text` to standard output, without characters that could control a terminal. Only this function and the
/// command `credential` write to standard output. If the reader, such as `head`, closes the pipe early, this function
/// does not fail.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out
        .write_all(visible_lines(text).as_bytes())
        .and_then(|()| out.flush())
    {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Failure::new(
            Code::Internal,
            format!("cannot write to standard output: {error}"),
            "check the target of standard output",
        )),
    }
}

/// `value` as indented JSON.
pub(super) fn json(value: &Value) -> String {
    visible_json(&format!("{value:#}\n"))
}

/// Formats `value` as YAML in block style. Texts with several lines become literal blocks. Other texts are quoted as in
/// JSON, which is valid YAML.
pub(super) fn yaml(value: &Value) -> String {
    let mut text = String::new();
    block(entries(value), 0, &mut text);
    text
}

/// The entries of a map or list: the text before each value, and the value.
fn entries(value: &Value) -> Vec<(String, &Value)> {
    match value {
        Value::Object(map) => {
            let entries = map.iter();
            entries
                .map(|(key, value)| (format!("{}:", name(key)), value))
                .collect()
        }
        Value::Array(list) => list.iter().map(|value| ("-".to_owned(), value)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// A key. Without quotes, YAML would interpret special characters, and would parse a key of digits as a number.
/// Therefore, the key is quoted unless it begins with a letter and contains no special characters.
fn name(key: &str) -> Cow<'_, str> {
    let is_plain = key.starts_with(|first: char| first.is_ascii_alphabetic())
        && !key.contains(|letter: char| is_invisible(letter) || ":#,[]{}\"'".contains(letter));
    if is_plain {
        key.into()
    } else {
        visible_json(&Value::from(key).to_string()).into()
    }
}

fn block(of: Vec<(String, &Value)>, indent: usize, text: &mut String) {
    let margin = " ".repeat(indent);
    for (head, value) in of {
        text.extend([margin.as_str(), &head]);
        let nested = entries(value);
        if !nested.is_empty() {
            text.push('\n');
            block(nested, indent + 2, text);
        } else if let Some(lines) = literal(value) {
            text.push_str(" |\n");
            for line in lines {
                text.extend([margin.as_str(), "  ", line, "\n"]);
            }
        } else {
            text.extend([" ", &visible_json(&value.to_string()), "\n"]);
        }
    }
}

/// The lines of the text, if it can be a literal block: the last line ends with a line feed, and no line is empty or
/// begins with a space, which YAML would interpret as indentation.
fn literal(value: &Value) -> Option<impl Iterator<Item = &str>> {
    let text = value.as_str()?.strip_suffix('\n')?;
    let is_plain =
        |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.contains(is_invisible);
    text.split('\n').all(is_plain).then(|| text.split('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped_in_yaml_and_json() {
        let value = serde_json::json!({
            "\u{9b}key": "x\u{202e}y\n", "key\u{2066}": ["\u{200b}"], "lines": "a\u{85}\nb\n",
        });

        for text in [yaml(&value), json(&value)] {
            let is_shown = |letter| letter == '\n' || !is_invisible(letter);
            assert!(text.chars().all(is_shown), "{text:?}");
            assert!(text.contains("\\u202e"), "{text}");
        }
        assert_eq!(serde_json::from_str::<Value>(&json(&value)).unwrap(), value);
    }

    #[test]
    fn yaml_is_in_block_style() {
        let value = serde_json::json!({
            "lines": "[a]\nb = \"c\"\n", "no lines": "a\n b\n", "an empty one": "a\n\n", "carried": "a\r\n",
            "name": "a: \"b\"", "none": null, "list": ["x", 1], "map": {"deep": {"er": true}}, "empty": {},
            "12e4": "a digest", "a: b": 1,
        });

        let expected = "\
\"12e4\": \"a digest\"
\"a: b\": 1
an empty one: \"a\\n\\n\"
carried: \"a\\r\\n\"
empty: {}
lines: |
  [a]
  b = \"c\"
list:
  - \"x\"
  - 1
map:
  deep:
    er: true
name: \"a: \\\"b\\\"\"
no lines: \"a\\n b\\n\"
none: null
";
        assert_eq!(yaml(&value), expected);
    }
}
