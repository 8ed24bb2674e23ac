//! The settings file and its drop-ins, with YAML errors that contain the line.

use std::fmt::Display;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use serde_path_to_error::Track;
use serde_saphyr::Error;

use super::document::{Content, constant};
use super::{Fault, ProviderSchema, Source, Values};
use crate::failure::{Code, Failure};
use crate::ownership::{self, Untrusted};

/// The maximum size of a file, in bytes: 100 times the size of all keys.
const MAX_FILE_LEN: u64 = 256 * 1024;

/// The maximum number of drop-ins, which is more than configuration management tools need for the small number of keys.
const MAX_DROP_INS: usize = 64;

/// Reads the file and its drop-ins, and passes the values and the fault of each file to `take`. Drop-ins take
/// precedence over the file. A drop-in takes precedence over drop-ins whose names sort before its name.
///
/// The drop-ins of `config.yaml` are the `.yaml` files in `config.d` in the same directory.
pub(super) fn read(
    named: Option<&Path>,
    default: &Path,
    schema: &ProviderSchema,
    take: &mut dyn FnMut(Source<'_>, Values, Option<Fault>),
) {
    let path = named.unwrap_or(default);
    load(Source::File(path), path, named.is_some(), schema, take);
    match drop_ins(&path.with_extension("d")) {
        Ok(drop_ins) => {
            for path in &drop_ins {
                load(Source::DropIn(path), path, true, schema, take);
            }
        }
        Err(failure) => take(
            Source::DropIn(path),
            Values::default(),
            Some(Fault::Invalid(failure)),
        ),
    }
}

pub(super) fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(folder, &error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| unreadable(folder, &error))?.path();
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        if name.ends_with(b".yaml") && !name.starts_with(b".") {
            paths.push(path);
        }
        if paths.len() > MAX_DROP_INS {
            let folder = folder.display();
            return Err(invalid(format!(
                "{folder} has more than {MAX_DROP_INS} drop-ins"
            )));
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Reads a document. Its valid settings apply, even if it contains a fault. A missing document is a fault if it is
/// `required`.
fn load(
    source: Source<'_>,
    path: &Path,
    required: bool,
    schema: &ProviderSchema,
    take: &mut dyn FnMut(Source<'_>, Values, Option<Fault>),
) {
    let document = path.display();
    let text = match text_of(path) {
        Ok(Some(text)) => text,
        Ok(None) if !required => return,
        Ok(None) => {
            let failure = unreadable(path, &io::ErrorKind::NotFound.into());
            return take(source, Values::default(), Some(Fault::Invalid(failure)));
        }
        Err(failure) => return take(source, Values::default(), Some(Fault::Invalid(failure))),
    };
    let strict = parse(&text, &document, schema, false).and_then(|content| {
        let missing = content.missing_header();
        let missing = missing.map(|(key, expected)| {
            let why = constant(expected);
            invalid(format!("{document}: key {key}: {why}"))
        });
        missing.map_or(Ok(content.values), Err)
    });
    let failure = match strict {
        Ok(values) => return take(source, values, None),
        Err(failure) => failure,
    };
    match parse(&text, &document, schema, true) {
        Ok(content) if content.is_invalid || content.missing_header().is_some() => {
            take(source, content.values, Some(Fault::Invalid(failure)));
        }
        Ok(content) => {
            let failure = Failure::new(failure.code(), failure.what(), "remove that setting");
            take(source, content.values, Some(Fault::Removed(failure)));
        }
        Err(_) => take(source, Values::default(), Some(Fault::Invalid(failure))),
    }
}

/// Reads the text of a document; `None` if the document does not exist.
fn text_of(path: &Path) -> Result<Option<String>, Failure> {
    let document = path.display();
    // Open without blocking, because no deadline applies yet, and a named pipe might never get a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty())) {
        Ok(file) => File::from(file),
        Err(error) if is_absent(&io::Error::from(error)) => return Ok(None),
        Err(error) => return Err(unreadable(path, &error.into())),
    };
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    if !metadata.is_file() {
        return Err(invalid(format!("{document} is not a regular file")));
    }
    trust(path, &metadata)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_LEN + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| unreadable(path, &error))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE_LEN {
        return Err(invalid(format!(
            "{document} is longer than {MAX_FILE_LEN} bytes"
        )));
    }
    let text = String::from_utf8(bytes).map_err(|error| not_text(&document, &error))?;
    Ok(Some(text))
}

/// Rejects a file that another user could change, because the settings determine where root reads and writes, and which
/// cluster a node trusts. Also rejects a file in a directory in which others can replace files.
fn trust(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let refuse = |untrusted: Option<Untrusted>| match untrusted {
        Some(Untrusted { what, remedy }) => Err(Failure::new(Code::Configuration, what, remedy)),
        None => Ok(()),
    };
    // Other users are responsible for their own settings.
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    refuse(ownership::of_file(path, metadata))?;
    let folder = path
        .parent()
        .and_then(|folder| Some((folder, fs::metadata(folder).ok()?)));
    refuse(folder.and_then(|(folder, metadata)| ownership::of_folder(folder, &metadata)))
}

/// Returns the failure of a run with invalid settings.
pub(super) fn invalid(what: String) -> Failure {
    Failure::new(Code::Configuration, what, "correct that setting")
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    invalid(format!("cannot read {}: {error}", path.display()))
}

fn not_text(document: &dyn Display, error: &FromUtf8Error) -> Failure {
    let text = error
        .as_bytes()
        .get(..error.utf8_error().valid_up_to())
        .unwrap_or_default();
    let lines = text.split(|byte| *byte == b'\n');
    let column = lines.clone().next_back().map_or(0, <[u8]>::len) + 1;
    not_yaml(document, lines.count(), column, "it is not UTF-8")
}

fn not_yaml(
    document: &dyn Display,
    line: impl Display,
    column: impl Display,
    why: &str,
) -> Failure {
    invalid(format!(
        "{document}: line {line}, column {column}: not YAML: {why}"
    ))
}

fn parse<'a>(
    text: &str,
    document: &dyn Display,
    schema: &'a ProviderSchema,
    lenient: bool,
) -> Result<Content<'a>, Failure> {
    let options = serde_saphyr::options! { with_snippet: false };
    let mut track = Track::new();
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        Content::read(
            schema,
            serde_path_to_error::Deserializer::new(yaml, &mut track),
            lenient,
        )
    });
    parsed.map_err(|error| explain(error, &track.path().to_string(), document))
}

/// Distinguishes an invalid key from an invalid document.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the parser has far more errors than this program distinguishes"
)]
fn explain(error: Error, path: &str, document: &dyn Display) -> Failure {
    let location = error.location();
    let value = |key: &str, why: &str| {
        let line = location.map(|location| format!(": line {}", location.line()));
        let line = line.unwrap_or_default();
        invalid(format!("{document}{line}: key {key}: {why}"))
    };
    // serde uses these paths for the whole document, and for a position between two keys.
    let at_a_key = !matches!(path, "." | "?");
    match error {
        Error::DuplicateMappingKey { key, .. } => {
            value(key.as_deref().unwrap_or(path), "duplicate key")
        }
        Error::Message { msg, .. } if at_a_key => value(path, &msg),
        other if at_a_key => value(path, &other.to_string()),
        other => {
            let line = location.map_or(1, |location| location.line());
            let column = location.map_or(1, |location| location.column());
            not_yaml(document, line, column, &other.to_string())
        }
    }
}
