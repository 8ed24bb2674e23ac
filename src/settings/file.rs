//! The settings file and its drop-ins, with YAML errors that name the line.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::string::FromUtf8Error;

use rustix::fs::{Mode, OFlags};
use rustix::io::retry_on_intr;
use serde::de::DeserializeSeed as _;
use serde_path_to_error::Track;
use serde_saphyr::Error;

use super::document::{Content, Reader};
use super::error::SettingsError;
use super::{ProviderSchema, Values};

/// A hundred times the size of all keys.
const MAX_FILE_LEN: u64 = 256 * 1024;

/// The cluster's extension, in errors.
const EXTENSION: &str = "KUBERNETES_EXEC_INFO: spec.cluster.config";

/// More than any configuration management needs for so few keys.
const MAX_DROP_INS: usize = 64;

/// Reads the file and its drop-ins into `values`. Drop-ins win over the file, and later names over
/// earlier ones.
///
/// The drop-ins of `config.yaml` are the `.yaml` files in `config.d` beside it.
pub(super) fn read(
    named: Option<&Path>,
    default: &Path,
    schema: &ProviderSchema,
    values: &mut Values,
) -> Result<(), SettingsError> {
    let path = named.unwrap_or(default);
    match (load(path, schema), named) {
        (Err(SettingsError::Unreadable { source, .. }), None) if is_absent(&source) => {}
        (loaded, _) => values.0.extend(loaded?.0),
    }
    for path in drop_ins(&path.with_extension("d"))? {
        values.0.extend(load(&path, schema)?.0);
    }
    Ok(())
}

/// Reads a cluster's extension, which needs no `apiVersion` and no `kind`.
pub(super) fn read_extension(json: &str, schema: &ProviderSchema) -> Result<Values, SettingsError> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    match Reader(schema).deserialize(&mut deserializer) {
        Ok(content) if deserializer.end().is_ok() => Ok(content.values),
        // JSON is YAML, and the YAML parser reports the key of an error. The fast JSON parser is
        // for valid input.
        Ok(_) | Err(_) => Ok(parse(json, &EXTENSION, schema)?.values),
    }
}

fn drop_ins(folder: &Path) -> Result<Vec<PathBuf>, SettingsError> {
    let failed = |source| SettingsError::Unreadable {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
            && !hidden
        {
            paths.push(path);
        }
        if paths.len() > MAX_DROP_INS {
            return Err(SettingsError::TooManyDropIns {
                path: folder.to_owned(),
                limit: MAX_DROP_INS,
            });
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

fn load(path: &Path, schema: &ProviderSchema) -> Result<Values, SettingsError> {
    let failed = |source| SettingsError::Unreadable {
        path: path.to_owned(),
        source,
    };
    // Non-blocking: no deadline runs yet, and a named pipe may never get a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()));
    let file = File::from(opened.map_err(|error| failed(error.into()))?);
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(SettingsError::NotAFile {
            path: path.to_owned(),
        });
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_LEN + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE_LEN {
        return Err(SettingsError::TooLarge {
            path: path.to_owned(),
            limit: MAX_FILE_LEN,
        });
    }
    let document = path.display();
    let text = String::from_utf8(bytes).map_err(|error| not_text(&document, &error))?;
    let content = parse(&text, &document, schema)?;
    match content.missing_header() {
        Some((key, why)) => Err(SettingsError::Value {
            origin: format!("{document}: key {key}"),
            why: why.to_string(),
        }),
        None => Ok(content.values),
    }
}

fn not_text(document: &dyn Display, error: &FromUtf8Error) -> SettingsError {
    let text = error
        .as_bytes()
        .get(..error.utf8_error().valid_up_to())
        .unwrap_or_default();
    let start = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    let lines_before = text.split(|byte| *byte == b'\n').count() - 1;
    let from_one = |count| u64::try_from(count).unwrap_or(u64::MAX).saturating_add(1);
    SettingsError::NotYaml {
        document: document.to_string(),
        line: from_one(lines_before),
        column: from_one(text.len() - start),
        why: "it is not UTF-8".to_owned(),
    }
}

fn parse<'a>(
    text: &str,
    document: &dyn Display,
    schema: &'a ProviderSchema,
) -> Result<Content<'a>, SettingsError> {
    let options = serde_saphyr::options! { with_snippet: false };
    let mut track = Track::new();
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
        Reader(schema).deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
    });
    parsed.map_err(|error| explain(error, &track.path().to_string(), document))
}

/// Distinguishes an invalid key from an invalid document.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "the parser knows far more faults than need telling apart"
)]
fn explain(error: Error, path: &str, document: &dyn Display) -> SettingsError {
    let location = error.location();
    let value = |key: &str, why| {
        let origin = match location {
            Some(location) => format!("{document}: line {}: key {key}", location.line()),
            None => format!("{document}: key {key}"),
        };
        SettingsError::Value { origin, why }
    };
    // Serde's paths of the whole document, and of a place between two keys.
    let at_a_key = !matches!(path, "." | "?");
    match error {
        Error::DuplicateMappingKey { key, .. } => value(
            key.as_deref().unwrap_or(path),
            "the key is there twice".to_owned(),
        ),
        Error::Message { msg, .. } if at_a_key => value(path, msg),
        other if at_a_key => value(path, other.to_string()),
        other => SettingsError::NotYaml {
            document: document.to_string(),
            line: location.map_or(1, |location| location.line()),
            column: location.map_or(1, |location| location.column()),
            why: other.to_string(),
        },
    }
}
