//! Requests, evidence and the store, decoded for operators.
//!
//! # Guarantees
//!
//! - Decoding works offline, does not verify anything and does not change anything. A name in a request is only a
//!   claim, which the controller has not verified.
//! - The result does not contain a key, a token, or a signature of evidence.

mod certificate;
mod evidence;
mod request;
mod store;

use std::fs::File;
use std::io::{self, IsTerminal as _, Read as _};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::failure::{Code, Failure};

pub(crate) use evidence::evidence;
pub(crate) use request::requests;
pub(crate) use store::store;

/// The maximum length of the input, in bytes: enough for the requests of 1,000 nodes.
const MAX_INPUT_LEN: u64 = 64 * 1024 * 1024;

/// A document to decode, and its name in errors.
pub(crate) struct Document {
    pub(crate) name: String,
    pub(crate) text: Zeroizing<String>,
}

impl Document {
    /// Reads the file, or standard input if the file is `-` or not given.
    pub(crate) fn read(file: Option<&Path>) -> Result<Self, Failure> {
        let file = file.filter(|file| *file != Path::new("-"));
        let name = file.map_or_else(
            || "standard input".to_owned(),
            |file| file.display().to_string(),
        );
        if file.is_none() && io::stdin().is_terminal() {
            let what = "no input: standard input is a terminal";
            return Err(Failure::new(
                Code::Usage,
                what,
                "specify a file, or use a pipe",
            ));
        }
        let mut bytes = Zeroizing::new(Vec::new());
        let mut limited = |from: &mut dyn io::Read| {
            from.take(MAX_INPUT_LEN + 1)
                .read_to_end(&mut bytes)
                .map(drop)
        };
        let read = match file {
            Some(file) => File::open(file).and_then(|mut file| limited(&mut file)),
            None => limited(&mut io::stdin().lock()),
        };
        let fail = |why: String, remedy: &str| {
            Err(Failure::new(Code::Usage, format!("{name}: {why}"), remedy))
        };
        if let Err(error) = read {
            return Err(Failure::new(
                Code::Usage,
                format!("cannot read {name}: {error}"),
                "specify a file that this user can read",
            ));
        }
        if u64::try_from(bytes.len()).is_ok_and(|length| length > MAX_INPUT_LEN) {
            let why = format!("it is longer than {MAX_INPUT_LEN} bytes");
            return fail(why, "split the input into parts");
        }
        match str::from_utf8(&bytes) {
            Ok(text) => Ok(Self {
                text: Zeroizing::new(text.to_owned()),
                name,
            }),
            Err(error) => fail(
                format!("it is not text: byte {} is not UTF-8", error.valid_up_to()),
                "use PEM; `openssl req -inform der` converts DER to PEM",
            ),
        }
    }

    /// Returns the failure for a document of the wrong kind.
    fn is_not(&self, what: &str, why: &str, remedy: &str) -> Failure {
        let name = &self.name;
        Failure::new(
            Code::Usage,
            format!("cannot decode the {what} in {name}: {why}"),
            remedy,
        )
    }
}

/// Decodes the text as each kind of object. Returns the tables and the JSON, or the error if the text does not have
/// this kind.
#[cfg(feature = "testing")]
pub fn inspected(text: &str, now: SystemTime) -> (Vec<String>, Vec<String>) {
    let document = Document {
        name: "input".to_owned(),
        text: Zeroizing::new(text.to_owned()),
    };
    let sheets = [
        requests(&document, now),
        evidence(&document).map(|sheet| vec![sheet]),
    ];
    let (mut decoded, mut errors) = (Vec::new(), Vec::new());
    for sheets in sheets {
        match sheets {
            Ok(sheets) => decoded.extend(sheets),
            Err(failure) => errors.push(failure.to_string()),
        }
    }
    let texts = decoded
        .iter()
        .flat_map(|sheet| [sheet.to_table(), sheet.to_json().to_string()]);
    (texts.collect(), errors)
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

fn at_second(since_1970: u64) -> String {
    at(UNIX_EPOCH + Duration::from_secs(since_1970.min(u32::MAX.into())))
}

fn sha256(bytes: &[u8]) -> String {
    HEXLOWER.encode(&Sha256::digest(bytes))
}
