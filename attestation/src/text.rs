//! Methods of types with validated text, and the sanitization of untrusted text for a terminal.

use std::fmt::Write as _;

/// Implements `as_str` for types that hold their text in the first field.
macro_rules! as_text {
    ($($name:ty),+) => { $(
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
    )+ };
}

/// Implements deserialization through `parse`, so each deserialized value passes the checks of `parse`.
macro_rules! parsed_from_text {
    ($($name:ty),+) => { $(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    )+ };
}

pub(crate) use {as_text, parsed_from_text};

/// Whether the character is invisible on a terminal, or changes the display of other characters. These are control
/// characters, line separators, and Unicode format characters, such as those that reverse the text direction.
pub fn is_invisible(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

/// The text on one line for a terminal or a log. Invisible characters become spaces.
pub fn visible(text: &str) -> String {
    let visible = |letter| if is_invisible(letter) { ' ' } else { letter };
    text.chars().map(visible).collect()
}

/// The text for a terminal. Invisible characters become spaces, except line ends and tabs.
pub fn visible_lines(text: &str) -> String {
    let visible = |letter| {
        if is_invisible(letter) && !"\n\t".contains(letter) {
            ' '
        } else {
            letter
        }
    };
    text.chars().map(visible).collect()
}

/// The JSON, in which the invisible characters in strings are escaped. Line ends and spaces between values remain
/// unchanged.
pub fn visible_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for letter in json.chars() {
        if letter == '\n' || !is_invisible(letter) {
            escaped.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            // A write to a `String` cannot fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ESC, CSI, direction overrides and isolates, zero-width spaces, a line separator, a tag character.
    const INVISIBLE: &str =
        "\u{1b}\u{9b}\u{202e}\u{2066}\u{200f}\u{61c}\u{200b}\u{feff}\u{ad}\u{2028}\u{e0041}";

    #[test]
    fn invisible_characters_in_one_line_become_spaces() {
        let spaces = " ".repeat(INVISIBLE.chars().count());

        assert_eq!(visible(&format!("a{INVISIBLE}b")), format!("a{spaces}b"));
        for shown in [
            "prod-1", "Zürich", "東京", "\u{5d0}", "\u{627}", "e\u{301}", "😀",
        ] {
            assert_eq!(visible(shown), shown);
        }
    }

    #[test]
    fn invisible_characters_except_line_breaks_become_spaces() {
        let spaces = " ".repeat(INVISIBLE.chars().count());

        let shown = visible_lines(&format!("a\tb\n{INVISIBLE}\r\nc\n"));

        assert_eq!(shown, format!("a\tb\n{spaces} \nc\n"));
    }

    #[test]
    fn invisible_characters_in_json_are_escaped_and_read_back() {
        let value = serde_json::json!({ INVISIBLE: ["a\nb", INVISIBLE, "Zürich"] });

        let json = visible_json(&format!("{value:#}"));

        let is_shown = |letter| letter == '\n' || !is_invisible(letter);
        assert!(json.chars().all(is_shown), "{json:?}");
        assert!(
            json.contains("\\u202e") && json.contains("\\udb40\\udc41"),
            "{json}"
        );
        assert!(json.contains("Zürich"));
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(read, value);
    }
}
