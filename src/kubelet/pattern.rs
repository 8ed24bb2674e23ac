//! Patterns in the paths of environment files (`EnvironmentFile=`, systemd.exec(5)), which systemd expands with
//! glob(3).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::Chars;

use super::{folder_contents, unreadable};
use crate::failure::Failure;
use crate::machine::Machine;

/// The characters that make a component of a path a pattern. A backslash makes the next character literal.
const SPECIAL: [char; 4] = ['*', '?', '[', '\\'];

/// Returns the files that a path in the unit matches, in the order in which systemd reads them. A path without a
/// pattern matches one file, which can be missing.
pub(crate) fn environment_files(machine: &Machine, path: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut found = vec![machine.path("/")];
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if part.contains(SPECIAL) {
            let mut matching = Vec::new();
            for folder in &found {
                matching.extend(entries(folder, part)?);
            }
            found = matching;
        } else {
            for path in &mut found {
                path.push(part);
            }
        }
    }
    Ok(found)
}

/// Returns the paths in a directory whose names match the pattern.
fn entries(folder: &Path, pattern: &str) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = match folder_contents(folder) {
        // A component in the middle of the path can also match a file, which is skipped.
        Err(error) if error.kind() == ErrorKind::NotADirectory => Vec::new(),
        listed => listed.map_err(|error| unreadable(folder, &error))?,
    };
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default();
        is_match(pattern, &name.to_string_lossy())
    });
    Ok(paths)
}

/// Whether a file name matches a pattern. Only a literal period matches a period at the start of a name.
fn is_match(pattern: &str, name: &str) -> bool {
    let is_hidden = name.starts_with('.') && pattern.starts_with(['*', '?', '[']);
    !is_hidden && is_match_in_name(pattern, name)
}

fn is_match_in_name(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    while let Some(expected) = pattern.next() {
        if expected == '*' {
            loop {
                if is_match_in_name(pattern.as_str(), name.as_str()) {
                    return true;
                }
                if name.next().is_none() {
                    return false;
                }
            }
        }
        let Some(found) = name.next() else {
            return false;
        };
        let is_same = match expected {
            '?' => true,
            '[' => is_in_list(&mut pattern, found),
            '\\' => pattern.next() == Some(found),
            literal => literal == found,
        };
        if !is_same {
            return false;
        }
    }
    name.next().is_none()
}

/// Whether a bracket list contains this character. `pattern` starts after the opening bracket, and this function
/// advances it past the closing bracket. Without a closing bracket, the opening bracket is literal.
fn is_in_list(pattern: &mut Chars<'_>, found: char) -> bool {
    let list = pattern.as_str();
    let negated = list.strip_prefix(['!', '^']);
    let mut rest = negated.unwrap_or(list).chars();
    let (mut is_listed, mut is_first) = (false, true);
    loop {
        let Some(first) = rest.next() else {
            return found == '[';
        };
        // A closing bracket at the start of the list is an element.
        if first == ']' && !is_first {
            break;
        }
        is_first = false;
        let mut range = rest.clone();
        let end = match (range.next(), range.next()) {
            (Some('-'), Some(end)) if end != ']' => {
                rest = range;
                end
            }
            _ => first,
        };
        is_listed |= (first..=end).contains(&found);
    }
    *pattern = rest;
    is_listed != negated.is_some()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::failure::Code;

    #[test]
    fn a_file_name_matches_a_pattern_as_in_glob() {
        for (pattern, matching, other) in [
            ("*", &["", "a", "a.env"][..], &[".env"][..]),
            ("*.env", &["a.env", "a.b.env"], &["a.env~", "env", ".env"]),
            ("a*b*c", &["abc", "a-b-b-c"], &["acb", "abcd"]),
            ("?.env", &["a.env", "ä.env"], &["ab.env", ".env", "..env"]),
            (".*", &[".env"], &["a.env"]),
            ("[ab]", &["a", "b"], &["c", "ab", ""]),
            ("[1-39]0", &["10", "20", "30", "90"], &["40", "-0"]),
            ("[!a]", &["b"], &["a", "", "."]),
            ("[^a-c]x", &["dx"], &["ax", "cx"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[.]a", &[], &[".a"]),
            ("a[", &["a["], &["a", "ab"]),
            ("\\*", &["*"], &["a", "\\*"]),
            ("a\\", &[], &["a", "a\\"]),
        ] {
            for name in matching {
                assert!(is_match(pattern, name), "{pattern} {name}");
            }
            for name in other {
                assert!(!is_match(pattern, name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn the_files_of_a_pattern_are_sorted() {
        let root = tempfile::tempdir().unwrap();
        for path in ["b.d/20", "b.d/10", "b.d/.30", "a.d/40", "c"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let machine = Machine::rooted(root.path());
        for (path, expected) in [
            ("/c", &["c"][..]),
            ("/none/c", &["none/c"]),
            ("/b.d/*", &["b.d/10", "b.d/20"]),
            ("//b.d//*0", &["b.d/10", "b.d/20"]),
            ("/*/[24]0", &["a.d/40", "b.d/20"]),
            ("/*.d/20", &["a.d/20", "b.d/20"]),
            ("/b.d/a*", &[]),
            ("/none/*", &[]),
            ("/c/*", &[]),
        ] {
            let expected: Vec<_> = expected.iter().map(|it| root.path().join(it)).collect();
            assert_eq!(
                environment_files(&machine, path).unwrap(),
                expected,
                "{path}"
            );
        }
    }

    #[test]
    fn an_unreadable_folder_of_a_pattern_fails_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        let long = "a".repeat(300);

        let machine = Machine::rooted(root.path());
        let failure = environment_files(&machine, &format!("/{long}/*")).unwrap_err();

        assert_eq!(failure.code(), Code::Configuration);
        assert!(failure.what().contains(&long), "{failure}");
    }
}
