//! The parts of help texts and manual pages that the command-line parser does not generate.

/// The exit codes with their meanings, for the end of `--help`.
pub fn exit_codes<'a>(codes: impl IntoIterator<Item = (u8, &'a str)>) -> String {
    let lines = codes
        .into_iter()
        .map(|(code, meaning)| format!("\n  {code:<2}  {meaning}"));
    "Exit codes:".to_owned() + &lines.collect::<String>()
}

/// A section of a manual page, in roff. Each entry is a term with its description.
pub fn section<'a>(
    title: &str,
    entries: impl IntoIterator<Item = (impl AsRef<str>, &'a str)>,
) -> String {
    let entries = entries.into_iter().map(|(term, description)| {
        let [term, description] = [term.as_ref(), description].map(escaped);
        format!(".TP\n\\fB{term}\\fR\n{description}\n")
    });
    format!(".SH \"{title}\"\n") + &entries.collect::<String>()
}

/// Escapes the text for roff, so that roff shows it unchanged. Without the escape, a period or a quote at the start of
/// a line begins a roff command. In addition, roff can convert a hyphen to a different character, so that a reader
/// cannot paste a command from the page.
fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    if text.starts_with(['.', '\'']) {
        return "\\&".to_owned() + &text;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_in_two_columns() {
        let text = exit_codes([(0, "success"), (20, "a check failed")]);

        assert_eq!(text, "Exit codes:\n  0   success\n  20  a check failed");
    }

    #[test]
    fn a_section_shows_hyphens_backslashes_and_leading_periods() {
        let text = section("EXIT STATUS", [("--a", ".b\\c"), ("d", "'e'")]);

        let expected = ".SH \"EXIT STATUS\"\n\
                        .TP\n\\fB\\-\\-a\\fR\n\\&.b\\ec\n\
                        .TP\n\\fBd\\fR\n\\&'e'\n";
        assert_eq!(text, expected);
    }
}
