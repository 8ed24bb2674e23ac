//! Names and their values in the syntax of shells, systemd, YAML, JSON and logs.

use super::names::{Name, is_noun};
use super::{REDACTED, line_before, split};

/// The punctuation of sentences and structures after a value.
const PUNCTUATION: &str = "\"'`,;)]}\\";

/// The range of a value after its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Assignment {
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A quote, with the backslashes before the quote in nested JSON.
#[derive(Clone, Copy)]
struct Quote {
    mark: char,
    backslashes: usize,
}

/// The syntax that ends a value.
#[derive(Clone, Copy)]
enum End {
    Space,
    /// The end of a member in a map with braces.
    Member,
    Line,
    /// The end of a YAML scalar. Lines with a deeper indentation belong to the scalar.
    Scalar,
    Quote(Quote),
}

impl Assignment {
    /// The value of `name`, which is between `before` and `after`, if a value follows.
    pub(super) fn parse(before: &str, name: &str, after: &str) -> Option<Self> {
        let line = line_before(before);
        let around = Quote::before(line);
        let is_flag = name.starts_with('-');
        let rest = unquoted(around, after);
        let is_enclosed = around.is_some() && rest.len() == after.len();
        let is_separator = |letter: char| {
            letter.is_whitespace() && letter != '\n'
                || ":=>".contains(letter)
                || is_flag && letter == ','
        };
        let (separator, value) = split(rest, is_separator);
        let quote = Quote::open(value);
        let has = |mark: char| separator.contains(mark);
        let is_assigned = if name.starts_with('/') {
            has('=')
        } else {
            let is_apart = !separator.is_empty();
            let is_quoted = quote.is_some() && !is_noun(name);
            has(':') || has('=') || has('>') || is_apart && (is_flag || is_quoted)
        };
        if !is_assigned {
            return None;
        }
        let key = line.trim_start_matches(|it: char| it.is_whitespace() || "-#\"'".contains(it));
        let is_first = !is_flag && ["", "export "].contains(&key);
        let is_map = has(':') && !separator.ends_with(':') || has(':') && value.starts_with('\n');
        let is_header = Name::of(name) == Some(Name::OfHeader);
        let end = match (quote, around.filter(|_| is_enclosed)) {
            (Some(quote), _) | (None, Some(quote)) => End::Quote(quote),
            _ if is_first && is_map => End::Scalar,
            _ if is_first && has('=') || is_header => End::Line,
            _ if is_map && line.trim_end().ends_with(['{', ',']) => End::Member,
            _ => End::Space,
        };
        let start = after.len() - value.len() + quote.map_or(0, |quote| quote.backslashes + 1);
        let len = length(after.get(start..)?, end, line);
        let end = start + len;
        Some(Self { start, end })
    }
}

impl Quote {
    /// The quote at the start of a string.
    fn open(text: &str) -> Option<Self> {
        let (backslashes, rest) = split(text, |letter| letter == '\\');
        let mark = rest.chars().next().filter(|mark| "\"'`".contains(*mark))?;
        let backslashes = backslashes.len();
        Some(Self { mark, backslashes })
    }

    /// The quote at the end of a string.
    fn before(text: &str) -> Option<Self> {
        let mark = text.chars().next_back()?;
        let rest = text.strip_suffix(['"', '\'', '`'])?;
        let backslashes = rest.len() - rest.trim_end_matches('\\').len();
        Some(Self { mark, backslashes })
    }

    /// The text of the first line up to the matching closing quote, and the text after the quote.
    fn close(self, text: &str) -> Option<(&str, &str)> {
        let mut backslashes = 0;
        for (at, letter) in first_line(text).char_indices() {
            if letter == self.mark
                && (backslashes < self.backslashes
                    || backslashes % (2 * (self.backslashes + 1)) == self.backslashes)
            {
                let end = at - backslashes.min(self.backslashes);
                let behind = text.get(at + letter.len_utf8()..)?;
                return Some((text.get(..end)?, behind));
            }
            backslashes = if letter == '\\' { backslashes + 1 } else { 0 };
        }
        None
    }
}

/// The text after the closing quote of a name. Keeps the opening quote of a value.
fn unquoted(around: Option<Quote>, text: &str) -> &str {
    let Some(quote) = Quote::open(text) else {
        return text;
    };
    let behind = text.get(quote.backslashes + 1..).unwrap_or_default();
    let behind = behind.strip_prefix(']').unwrap_or(behind);
    let is_name = behind.trim_start_matches(' ').starts_with([':', '=']);
    if is_name || around.is_some_and(|around| around.mark == quote.mark) {
        behind
    } else {
        text
    }
}

/// The length of the value at the start of `text`; `line` is the text before the name of the value.
fn length(text: &str, end: End, line: &str) -> usize {
    let column = line.len() - line.trim_start_matches([' ', '\t', '-']).len();
    let this = || first_line(text);
    match end {
        End::Quote(quote) => match quote.close(text) {
            Some((value, behind)) if is_piece(behind, line) => {
                text.len() - behind.len() + word(behind, line).max(usize::from(value.is_empty()))
            }
            Some((value, _)) => value.len(),
            None => this().len() + deeper(text, column),
        },
        End::Space => trimmed(text.get(..word(text, line)).unwrap_or_else(this)),
        End::Member => trimmed(this().split([',', '}']).next().unwrap_or_else(this)),
        End::Line => trimmed(this()),
        End::Scalar => match deeper(text, column) {
            // A map in YAML is not the value of its name.
            more if this().trim().is_empty() => {
                let below = text.get(..this().len() + more).unwrap_or_default();
                if below.contains(':') { 0 } else { below.len() }
            }
            0 => trimmed(this()),
            more => this().len() + more,
        },
    }
}

fn first_line(text: &str) -> &str {
    text.split('\n').next().unwrap_or_default()
}

/// The length without trailing punctuation.
fn trimmed(value: &str) -> usize {
    let is_behind = |letter: char| letter.is_whitespace() || PUNCTUATION.contains(letter);
    let least = if value.starts_with(REDACTED) {
        REDACTED.len()
    } else {
        0
    };
    value.trim_end_matches(is_behind).len().max(least)
}

/// Whether a quoted value continues after its quote, as in `'a'"b"c` in a shell.
fn is_piece(text: &str, line: &str) -> bool {
    text.chars().next().is_some_and(|next| {
        if "\"'".contains(next) {
            line.matches(next).count() % 2 == 0
        } else {
            !next.is_whitespace() && !PUNCTUATION.contains(next) && !":&|<".contains(next)
        }
    })
}

/// The length of a shell word: spaces in quotes or after a backslash belong to the word.
fn word(text: &str, line: &str) -> usize {
    let mut open = None;
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        let behind = || first_line(text.get(at + letter.len_utf8()..).unwrap_or_default());
        match open {
            _ if letter == '\n' => return at,
            Some(mark) if letter == mark => open = None,
            None if is_escaped => {}
            None if letter.is_whitespace() => return at,
            None if "\"'".contains(letter)
                && line.matches(letter).count() % 2 == 0
                && behind().contains(letter) =>
            {
                open = Some(letter);
            }
            Some(_) | None => {}
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    text.len()
}

/// The length of the following lines that belong to a value: their indentation is deeper than the name's, or a
/// backslash joins them.
fn deeper(text: &str, column: usize) -> usize {
    let mut lines = text.split('\n');
    let mut before = lines.next().unwrap_or_default();
    let (mut len, mut kept) = (0, 0);
    for line in lines {
        let depth = line.len() - line.trim_start().len();
        let is_blank = line.trim().is_empty();
        if !is_blank && depth <= column && !before.ends_with('\\') {
            break;
        }
        len += 1 + line.len();
        if !is_blank {
            kept = len;
        }
        before = line;
    }
    kept
}
