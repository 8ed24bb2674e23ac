//! Environment files, and lists of words, as systemd reads them.

/// The line terminators in systemd's files.
const NEWLINE: [char; 2] = ['\n', '\r'];

/// The characters that a backslash makes literal in double quotes (`SHELL_NEED_ESCAPE`).
const ESCAPED: [char; 4] = ['"', '\\', '`', '$'];

/// The states of the environment file parser, with the names from systemd's `env-file.c`.
#[derive(Clone, Copy, PartialEq)]
enum State {
    PreKey,
    Key,
    PreValue,
    Value,
    ValueEscape,
    SingleQuote,
    DoubleQuote,
    DoubleQuoteEscape,
    Comment,
}

/// The assignments of an environment file, in order (systemd.exec(5), `EnvironmentFile=`).
///
/// The last assignment to a variable takes precedence. A name that systemd rejects, such as `export A`, is omitted.
pub(super) fn assignments(contents: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let (mut key, mut value) = (String::new(), String::new());
    // The length of the value without trailing white space.
    let mut kept = 0;
    let mut state = State::PreKey;
    for c in contents.chars() {
        let is_end = NEWLINE.contains(&c);
        state = match state {
            State::PreKey if ['#', ';'].contains(&c) => State::Comment,
            State::PreKey if c.is_ascii_whitespace() => State::PreKey,
            State::PreKey => {
                key = c.into();
                State::Key
            }
            State::Key | State::Comment if is_end => State::PreKey,
            State::Key if c == '=' => {
                value.clear();
                kept = 0;
                State::PreValue
            }
            State::Key => {
                key.push(c);
                State::Key
            }
            State::PreValue | State::Value if is_end => {
                value.truncate(kept);
                found.push((key.trim_end().to_owned(), value.clone()));
                State::PreKey
            }
            State::PreValue if c == '\'' => State::SingleQuote,
            State::PreValue if c == '"' => State::DoubleQuote,
            State::PreValue | State::Value if c == '\\' => State::ValueEscape,
            State::PreValue if c.is_ascii_whitespace() => State::PreValue,
            State::PreValue | State::Value => {
                value.push(c);
                if !c.is_ascii_whitespace() {
                    kept = value.len();
                }
                State::Value
            }
            State::ValueEscape => {
                if !is_end {
                    value.push(c);
                }
                kept = value.len();
                State::Value
            }
            State::SingleQuote if c == '\'' => State::PreValue,
            State::DoubleQuote if c == '"' => State::PreValue,
            State::DoubleQuote if c == '\\' => State::DoubleQuoteEscape,
            State::SingleQuote | State::DoubleQuote => {
                value.push(c);
                kept = value.len();
                state
            }
            State::DoubleQuoteEscape => {
                if ESCAPED.contains(&c) {
                    value.push(c);
                } else if c != '\n' {
                    value.extend(['\\', c]);
                }
                kept = value.len();
                State::DoubleQuote
            }
            State::Comment => State::Comment,
        };
    }
    // The last line can end without a line terminator and without a closing quote.
    if !matches!(state, State::PreKey | State::Key | State::Comment) {
        if state == State::Value {
            value.truncate(kept);
        }
        found.push((key.trim_end().to_owned(), value));
    }
    found.retain(|(key, _)| is_name(key));
    found
}

/// Splits a string at white space. White space in quotes does not split the string, and the quotes are removed. A
/// backslash makes the next character literal (systemd.service(5), "Command lines").
pub(crate) fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let (mut quote, mut is_escaped) = (None, false);
    for c in text.chars() {
        if is_escaped {
            word.get_or_insert_default().push(c);
            is_escaped = false;
        } else if c == '\\' {
            is_escaped = true;
        } else if quote == Some(c) {
            quote = None;
        } else if quote.is_none() && (c == '"' || c == '\'') {
            quote = Some(c);
            word.get_or_insert_default();
        } else if quote.is_none() && c.is_ascii_whitespace() {
            words.extend(word.take());
        } else {
            word.get_or_insert_default().push(c);
        }
    }
    words.extend(word);
    words
}

/// Replaces the variables in the words of a command line. A word `$A` becomes the words of its value, and `${A}` in a
/// word becomes the literal value. A variable without a value is removed.
pub(super) fn expanded(words: &[String], value: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut expanded = Vec::new();
    for word in words {
        match word.strip_prefix('$').filter(|name| is_name(name)) {
            Some(name) => expanded.extend(self::words(&value(name).unwrap_or_default())),
            None => expanded.push(replaced(word, &value)),
        }
    }
    expanded
}

fn replaced(word: &str, value: &impl Fn(&str) -> Option<String>) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('$') {
        text.push_str(before);
        let braced = after.strip_prefix('{').and_then(|it| it.split_once('}'));
        rest = if let Some((name, behind)) = braced.filter(|(name, _)| is_name(name)) {
            text.push_str(&value(name).unwrap_or_default());
            behind
        } else {
            text.push('$');
            after.strip_prefix('$').unwrap_or(after)
        };
    }
    text.push_str(rest);
    text
}

/// Whether systemd accepts this text as the name of a variable.
fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    name.starts_with(|c: char| !c.is_ascii_digit()) && name.chars().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        pairs.iter().map(owned).collect()
    }

    #[test]
    fn an_environment_file_is_parsed_as_in_systemd() {
        for (contents, expected) in [
            ("", &[][..]),
            ("A=b", &[("A", "b")]),
            ("A=\n", &[("A", "")]),
            ("A", &[]),
            ("# A=b\n; A=c\n  # A=d\n", &[]),
            ("A=b # c", &[("A", "b # c")]),
            ("  A = b  \n", &[("A", "b")]),
            ("A=b c\t\r\nB=d", &[("A", "b c"), ("B", "d")]),
            ("A=\"b c \"", &[("A", "b c ")]),
            ("A='b \\ \"c'", &[("A", "b \\ \"c")]),
            ("A=\"b\\\"c\\\\d\\$e\\f\"", &[("A", "b\"c\\d$e\\f")]),
            ("A=\"b\" 'c'", &[("A", "bc")]),
            ("A=b\\\nc\nB=d", &[("A", "bc"), ("B", "d")]),
            ("A=b \\\n  c", &[("A", "b   c")]),
            ("A=\"b \\\nc\"", &[("A", "b c")]),
            ("A=\"b\nc\"", &[("A", "b\nc")]),
            ("A=\"b", &[("A", "b")]),
            ("A=b\\", &[("A", "b")]),
            ("A=\"b\\", &[("A", "b")]),
            ("A=b ", &[("A", "b")]),
            ("A=b\\\"c", &[("A", "b\"c")]),
            ("A=b\"c\"", &[("A", "b\"c\"")]),
            ("export A=b\n1=c\nB=d", &[("B", "d")]),
            ("A=b\nA=c", &[("A", "b"), ("A", "c")]),
        ] {
            assert_eq!(assignments(contents), pairs(expected), "{contents:?}");
        }
    }

    #[test]
    fn a_list_of_words_is_split_as_in_systemd() {
        for (text, expected) in [
            ("", &[][..]),
            (" a  b\t", &["a", "b"]),
            ("a\"b c\"d 'e \"f'", &["ab cd", "e \"f"]),
            ("\"\" a", &["", "a"]),
            ("a\\ b \"c\\\"d\"", &["a b", "c\"d"]),
        ] {
            assert_eq!(words(text), expected, "{text:?}");
        }
    }

    #[test]
    fn command_line_variables_are_expanded_as_in_systemd() {
        let value = |name: &str| (name == "A").then(|| "b 'c d'".to_owned());
        for (line, expected) in [
            ("k $A -x", &["k", "b", "c d", "-x"][..]),
            ("k $B ${B}", &["k", ""]),
            ("k ${A}", &["k", "b 'c d'"]),
            ("k --a=${A}", &["k", "--a=b 'c d'"]),
            ("k --a=$A $$A", &["k", "--a=$A", "$A"]),
            // Unlike a shell, a systemd command line does not support default values.
            ("k --a=${A:-c}", &["k", "--a=${A:-c}"]),
        ] {
            let line: Vec<_> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(expanded(&line, value), expected, "{line:?}");
        }
    }
}
