//! Facts about an object, as a table for users and as JSON for programs.

use kubelet_attestation::text::visible;
use serde_json::{Map, Value};

/// The width of a table.
const WIDTH: usize = 80;

/// The indentation of a part, and of a value on a separate line.
const INDENT: usize = 2;

/// Facts, in order. Each has a key in JSON and a name in a table.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sheet {
    facts: Vec<Fact>,
}

#[derive(Debug, Clone, PartialEq)]
struct Fact {
    key: &'static str,
    name: &'static str,
    content: Content,
}

#[derive(Debug, Clone, PartialEq)]
enum Content {
    /// A value, and its text in a table.
    Value(Value, String),
    List(Vec<String>),
    Part(Sheet),
    Parts(Vec<Sheet>),
}

impl Sheet {
    /// Adds a string. Control characters, which could control a terminal, become spaces.
    pub(crate) fn text(&mut self, key: &'static str, name: &'static str, text: impl Into<String>) {
        let text = visible(&text.into());
        self.add(key, name, Content::Value(text.clone().into(), text));
    }

    /// Adds a string. Without a string, the JSON value is null.
    pub(crate) fn text_or(
        &mut self,
        key: &'static str,
        name: &'static str,
        text: Option<impl Into<String>>,
        otherwise: &str,
    ) {
        match text {
            Some(text) => self.text(key, name, text),
            None => self.value(key, name, Value::Null, otherwise),
        }
    }

    /// Adds a value with a separate text for tables.
    pub(crate) fn value(
        &mut self,
        key: &'static str,
        name: &'static str,
        value: impl Into<Value>,
        words: impl Into<String>,
    ) {
        self.add(
            key,
            name,
            Content::Value(value.into(), visible(&words.into())),
        );
    }

    /// Adds texts.
    pub(crate) fn list(&mut self, key: &'static str, name: &'static str, list: &[String]) {
        let list = list.iter().map(|text| visible(text)).collect();
        self.add(key, name, Content::List(list));
    }

    /// Adds facts about a part.
    pub(crate) fn part(&mut self, key: &'static str, name: &'static str, part: Self) {
        self.add(key, name, Content::Part(part));
    }

    /// Adds the facts about each of several parts, as a list.
    pub(crate) fn parts(&mut self, key: &'static str, name: &'static str, parts: Vec<Self>) {
        self.add(key, name, Content::Parts(parts));
    }

    fn add(&mut self, key: &'static str, name: &'static str, content: Content) {
        self.facts.push(Fact { key, name, content });
    }

    /// The facts by key.
    pub(crate) fn to_json(&self) -> Value {
        let facts = self.facts.iter().map(|fact| {
            let value = match &fact.content {
                Content::Value(value, _) => value.clone(),
                Content::List(list) => list.clone().into(),
                Content::Part(part) => part.to_json(),
                Content::Parts(parts) => parts.iter().map(Self::to_json).collect(),
            };
            (fact.key.to_owned(), value)
        });
        Value::Object(facts.collect::<Map<_, _>>())
    }

    /// Names and values in two columns. A line exceeds the width only if a single word exceeds it.
    pub(crate) fn to_table(&self) -> String {
        let mut text = String::new();
        self.write(0, self.width(), &mut text);
        text
    }

    /// The width of the names, with their indentation.
    fn width(&self) -> usize {
        let widths = self.facts.iter().map(|fact| {
            let own = fact.name.chars().count();
            let inner = match &fact.content {
                Content::Value(..) | Content::List(_) => 0,
                Content::Part(part) => part.width(),
                Content::Parts(parts) => parts.iter().map(Self::width).max().unwrap_or_default(),
            };
            own.max(if inner > 0 { inner + INDENT } else { 0 })
        });
        widths.max().unwrap_or_default()
    }

    fn write(&self, indent: usize, width: usize, text: &mut String) {
        for fact in &self.facts {
            let name = format!("{:indent$}{}", "", fact.name);
            match &fact.content {
                Content::Value(_, words) => row(&name, width, indent, words, text),
                Content::List(list) if list.is_empty() => row(&name, width, indent, "none", text),
                Content::List(list) => {
                    for (at, words) in list.iter().enumerate() {
                        row(if at == 0 { &name } else { "" }, width, indent, words, text);
                    }
                }
                Content::Part(part) => {
                    text.extend([name.as_str(), "\n"]);
                    part.write(indent + INDENT, width, text);
                }
                Content::Parts(parts) => {
                    for part in parts {
                        text.extend([name.as_str(), "\n"]);
                        part.write(indent + INDENT, width, text);
                    }
                }
            }
        }
    }
}

/// Appends a name and its value. If a word of the value does not fit next to the name, the value begins on the next
/// line.
fn row(name: &str, width: usize, indent: usize, words: &str, text: &mut String) {
    let beside = width + INDENT;
    let is_narrow = |word: &str| beside + word.chars().count() <= WIDTH;
    if words.split_whitespace().all(is_narrow) {
        wrap(&format!("{name:beside$}"), beside, words, text);
    } else {
        if !name.is_empty() {
            text.extend([name, "\n"]);
        }
        wrap("", indent + INDENT + INDENT, words, text);
    }
}

/// Appends the words in lines of [`WIDTH`], after a margin that begins with `first`. A longer word gets a separate
/// line.
pub(crate) fn wrap(first: &str, margin: usize, words: &str, text: &mut String) {
    let mut line = format!("{first:margin$}");
    let mut is_begun = false;
    for word in words.split_whitespace() {
        if is_begun && line.chars().count() + 1 + word.chars().count() > WIDTH {
            text.extend([line.as_str(), "\n"]);
            line = " ".repeat(margin);
            is_begun = false;
        }
        line.extend([if is_begun { " " } else { "" }, word]);
        is_begun = true;
    }
    text.extend([line.trim_end(), "\n"]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sheet() -> Sheet {
        let mut inner = Sheet::default();
        inner.text("digest", "SHA-256", "0".repeat(64));
        inner.value("days", "Days left", 3, "3 days");
        let mut sheet = Sheet::default();
        sheet.text("name", "Name", "a\u{1b}[2Jb");
        sheet.text_or("absent", "Absent", None::<String>, "none");
        sheet.list("usages", "Usages", &["one".to_owned(), "two".to_owned()]);
        sheet.list("none", "Nothing", &[]);
        sheet.part("key", "Public key", inner.clone());
        sheet.parts("chain", "Certificate", vec![inner.clone(), inner]);
        sheet.text("long", "Long", "word ".repeat(20));
        sheet
    }

    #[test]
    fn a_table_has_two_columns_and_at_most_80_characters() {
        let digest = "0".repeat(64);
        let part = format!("  SHA-256    {digest}\n  Days left  3 days\n");
        let expected = format!(
            "Name         a [2Jb\n\
             Absent       none\n\
             Usages       one\n             two\n\
             Nothing      none\n\
             Public key\n{part}\
             Certificate\n{part}\
             Certificate\n{part}\
             Long         word word word word word word word word word word word word word\n\
             {:13}word word word word word word word\n",
            ""
        );
        assert_eq!(sheet().to_table(), expected);
        assert!(sheet().to_table().lines().all(|line| line.len() <= WIDTH));
    }

    #[test]
    fn a_value_too_long_for_its_column_is_on_the_next_line() {
        let mut sheet = Sheet::default();
        let digest = "0".repeat(64);
        sheet.text("digest", "The digest of the key", &digest);

        assert_eq!(
            sheet.to_table(),
            format!("The digest of the key\n    {digest}\n")
        );
    }

    #[test]
    fn json_output_has_each_value_under_its_key() {
        let inner = json!({"digest": "0".repeat(64), "days": 3});
        let expected = json!({
            "name": "a [2Jb", "absent": null, "usages": ["one", "two"], "none": [],
            "key": inner, "chain": [inner, inner], "long": "word ".repeat(20),
        });
        assert_eq!(sheet().to_json(), expected);
    }
}
