//! The support bundle: an archive of diagnostic data, without secrets.
//!
//! # Guarantees
//!
//! - Every text goes through the [`Redactor`].
//! - Only the owner can read the file, and no existing file is overwritten. A file that cannot be written completely is
//!   removed.
//! - `MANIFEST` lists each file, its source, the number of redacted places, and the missing parts, including the
//!   truncated end of an output that is too long.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::SystemTime;

use kubelet_attestation::errors::error_chain;
use tar::{Builder, Header};

use crate::clock;
use crate::failure::{Code, Failure};
use crate::file_size;
use crate::process::{NoOutput, Output};
use crate::redact::{REDACTED, Redactor};

/// The size of a header in a tar archive, and the unit to which contents are padded, in bytes (tar(5)).
const BLOCK: usize = 512;

/// The maximum size of a copied file, in bytes.
const MAX_FILE_LEN: u64 = 1024 * 1024;

/// The texts of a bundle, redacted.
#[derive(Debug)]
pub(crate) struct Bundle {
    redactor: Redactor,
    members: Vec<Member>,
    missing: Vec<(String, String)>,
}

#[derive(Debug)]
struct Member {
    name: &'static str,
    source: String,
    text: String,
    removed: usize,
    is_cut: bool,
}

impl Bundle {
    pub(crate) fn new(redactor: Redactor) -> Self {
        Self {
            redactor,
            members: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Adds a text, or the reason why the text is missing.
    pub(crate) fn add(&mut self, name: &'static str, source: &str, text: Result<String, String>) {
        match text {
            Ok(text) => {
                let (text, removed) = self.redactor.redact(&text);
                self.members.push(Member {
                    name,
                    source: source.to_owned(),
                    text,
                    removed,
                    is_cut: false,
                });
            }
            Err(why) => {
                let (why, _) = self.redactor.redact(&why);
                self.missing.push((format!("{name} ({source})"), why));
            }
        }
    }

    /// Adds the output of a program.
    pub(crate) fn add_output(
        &mut self,
        name: &'static str,
        source: &str,
        output: Result<Output, NoOutput>,
    ) {
        let is_cut = output.as_ref().is_ok_and(|output| output.is_cut);
        let text = output.map(|output| output.text);
        self.add(name, source, text.map_err(|error| error_chain(&error)));
        if let Some(member) = self.members.last_mut().filter(|_| is_cut) {
            member.is_cut = true;
        }
    }

    /// Adds a file.
    pub(crate) fn add_file(&mut self, name: &'static str, path: &Path) {
        let text = fs::metadata(path).and_then(|metadata| {
            if metadata.is_file() && metadata.len() <= MAX_FILE_LEN {
                let bytes = fs::read(path)?;
                return Ok(String::from_utf8_lossy(&bytes).into_owned());
            }
            Err(io::Error::other(
                "it is not a regular file, or it is too large",
            ))
        });
        let source = path.display().to_string();
        self.add(name, &source, text.map_err(|error| error.to_string()));
    }

    /// Returns the list of the archive's contents.
    fn manifest(&self, title: &str) -> String {
        let mut text = format!(
            "{title}\n\n\
             Keys, tokens, passwords and signatures are replaced with {REDACTED}, and so is text \
             that\nonly looks like one of them. Names, addresses and paths are not replaced: read the files\n\
             before you send them.\n\nFiles:\n"
        );
        text.extend(self.members.iter().map(|member| {
            let (name, source, removed) = (member.name, &member.source, member.removed);
            let cut = if member.is_cut {
                "; truncated because of its size"
            } else {
                ""
            };
            format!("  {name}: {source}; {removed} removed{cut}\n")
        }));
        if !self.missing.is_empty() {
            text.push_str("\nMissing:\n");
        }
        let missing = self.missing.iter();
        text.extend(missing.map(|(name, why)| format!("  {name}: {why}\n")));
        text
    }

    /// Writes the archive. Returns its number of files.
    pub(crate) fn write(
        &self,
        path: &Path,
        title: &str,
        now: SystemTime,
    ) -> Result<usize, Failure> {
        let written = self.write_new(path, title, now);
        written.map_err(|error| {
            let what = format!("cannot write {}: {error}", path.display());
            let remedy =
                "specify a file that does not exist yet, in a directory that this user can write to";
            Failure::new(Code::Store, what, remedy)
        })
    }

    fn write_new(&self, path: &Path, title: &str, now: SystemTime) -> io::Result<usize> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)?;
        let written = self.write_to(file, title, now);
        if written.is_err() {
            // Remove the partial file, which would make the next run fail.
            drop(fs::remove_file(path));
        }
        written
    }

    fn write_to(&self, file: File, title: &str, now: SystemTime) -> io::Result<usize> {
        let manifest = self.manifest(title);
        let texts = self.members.iter().map(|it| it.text.len());
        let texts = texts.chain([manifest.len()]);
        file_size::permit(texts.map(|len| len + 2 * BLOCK).sum::<usize>() + 2 * BLOCK)?;
        let mut archive = Builder::new(file);
        let members = self.members.iter().map(|it| (it.name, it.text.as_str()));
        let mut count = 0;
        for (name, text) in [("MANIFEST", manifest.as_str())].into_iter().chain(members) {
            let mut header = Header::new_gnu();
            header.set_mode(0o600);
            header.set_mtime(clock::unix_seconds(now));
            header.set_size(u64::try_from(text.len()).unwrap_or_default());
            archive.append_data(&mut header, name, text.as_bytes())?;
            count += 1;
        }
        let mut file = archive.into_inner()?;
        file.flush()?;
        file.sync_all()?;
        Ok(count)
    }
}
