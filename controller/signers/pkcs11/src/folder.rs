//! The folder with one file for each CA.
//!
//! # Guarantees
//!
//! - An invalid file affects only its own CA.
//! - A CA that is in use keeps its Cluster, even if its file changes: the signer does not use another file for the same
//!   Cluster, with the same certificate, or with the same key. If one read finds several such new files, the signer
//!   uses the first file by name.
//! - The signer replaces the CA if its file changes, and drops the CA if its file is removed.
//! - Each version of an invalid file results in one event.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::mem;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::authority::Authority;
use crate::chain::chain;

/// The maximum number of CAs. Each CA can occupy threads.
pub(crate) const MAX_CAS: usize = 2000;

/// The maximum number of entries in the folder, including files that are not used.
const MAX_ENTRIES: usize = 10_000;

/// The maximum size of a file. A certificate is a few kilobytes large.
const MAX_FILE_LEN: u64 = 64 * 1024;

/// The bytes of each file, or the reason why the file cannot be read, keyed by file name.
pub(crate) type Files = BTreeMap<String, Result<Vec<u8>, String>>;

/// The files in the folder, as of the last successful read.
#[derive(Debug, Default)]
pub(crate) struct Folder(BTreeMap<String, Version>);

/// A version of a file.
#[derive(Debug, Clone)]
struct Version {
    /// The digest of the bytes, or the reason why the file cannot be read.
    content: Result<[u8; 32], String>,
    /// The CA, or the reason why the signer does not use the file.
    authority: Result<Arc<Authority>, String>,
}

/// A change since the previous read.
#[derive(Debug)]
pub(crate) enum Event {
    /// The signer uses the CA of this file.
    Used(String, Arc<Authority>),
    /// The signer does not use this file, for this reason.
    Refused(String, String),
    /// The file was removed.
    Removed(String),
}

/// Reads the files of the folder. Names that begin with a dot are not read: Kubernetes uses them in volumes, and
/// editors use them for files that are not complete.
///
/// # Errors
///
/// Returns an error if the folder cannot be read.
pub(crate) fn read(folder: &Path) -> io::Result<Files> {
    let mut files = Files::new();
    for (number, entry) in (1..).zip(fs::read_dir(folder)?) {
        // Without this error, the read could omit the files of CAs that are in use.
        if number > MAX_ENTRIES {
            return Err(io::Error::other("it has more than 10,000 entries"));
        }
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        if let Some(content) = content(&entry.path()).transpose() {
            files.insert(name, content.map_err(|error| error.to_string()));
        }
    }
    Ok(files)
}

/// Reads the bytes of a file. `None` for other entries, such as a directory or a pipe.
fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let mut file = File::open(path)?.take(MAX_FILE_LEN + 1);
    let len = file.read_to_end(&mut bytes)?;
    if u64::try_from(len).unwrap_or(u64::MAX) > MAX_FILE_LEN {
        return Err(io::Error::other("it is longer than 64 KiB"));
    }
    Ok(Some(bytes))
}

impl Folder {
    /// Applies the files of the next read.
    pub(crate) fn update(&mut self, files: Files) -> Vec<Event> {
        let former = mem::take(&mut self.0);
        let mut new = Vec::new();
        for (name, bytes) in files {
            let content = bytes.as_ref().map(|bytes| Sha256::digest(bytes).into());
            let content: Result<[u8; 32], String> = content.map_err(Clone::clone);
            match former.get(&name) {
                Some(version) if version.authority.is_ok() && version.content == content => {
                    self.0.insert(name, version.clone());
                }
                before @ (Some(_) | None) => {
                    let parsed = bytes
                        .and_then(|bytes| Authority::parse(&bytes).map_err(|error| chain(&error)));
                    let before = before.and_then(|version| version.authority.as_ref().ok());
                    let of_both = before.zip(parsed.as_ref().ok());
                    let is_new = of_both.is_none_or(|(before, now)| before.cluster != now.cluster);
                    new.push((is_new, name, content, parsed));
                }
            }
        }
        // A CA in use takes precedence over all new files, regardless of their names.
        new.sort_by_key(|(is_new, ..)| *is_new);
        let mut count = self.authorities().count();
        for (_, name, content, parsed) in new {
            let authority = parsed.and_then(|authority| self.free(authority, count));
            count += usize::from(authority.is_ok());
            self.0.insert(name, Version { content, authority });
        }
        self.events(&former)
    }

    /// Checks that no other file contains the Cluster, the certificate or the key. A certificate with the name and the
    /// key of another CA, but with different bytes, would otherwise assign that key to a second Cluster.
    fn free(&self, authority: Authority, count: usize) -> Result<Arc<Authority>, String> {
        for (name, version) in &self.0 {
            let Ok(other) = &version.authority else {
                continue;
            };
            if other.cluster == authority.cluster {
                return Err(format!("{name} is already the file for {}", other.cluster));
            }
            if other.sha256 == authority.sha256 {
                return Err(format!(
                    "{name} already assigns this CA certificate to {}",
                    other.cluster
                ));
            }
            if other.has_key_of(&authority) {
                return Err(format!(
                    "{name} already assigns the key of this CA to {}",
                    other.cluster
                ));
            }
        }
        if count >= MAX_CAS {
            return Err(format!("the directory already contains {MAX_CAS} CAs"));
        }
        Ok(Arc::new(authority))
    }

    fn events(&self, former: &BTreeMap<String, Version>) -> Vec<Event> {
        let mut events = Vec::new();
        for (name, version) in &self.0 {
            let before = former.get(name);
            match &version.authority {
                Ok(authority) => {
                    let before = before.and_then(|before| before.authority.as_ref().ok());
                    if before.is_none_or(|before| !Arc::ptr_eq(before, authority)) {
                        events.push(Event::Used(name.clone(), authority.clone()));
                    }
                }
                Err(reason) => {
                    let is_known = before.is_some_and(|before| {
                        before.content == version.content
                            && before
                                .authority
                                .as_ref()
                                .is_err_and(|before| before == reason)
                    });
                    if !is_known {
                        events.push(Event::Refused(name.clone(), reason.clone()));
                    }
                }
            }
        }
        let removed = former.keys().filter(|name| !self.0.contains_key(*name));
        events.extend(removed.cloned().map(Event::Removed));
        events
    }

    /// The CAs.
    pub(crate) fn authorities(&self) -> impl Iterator<Item = Arc<Authority>> {
        let versions = self.0.values();
        versions.filter_map(|version| version.authority.as_ref().ok().cloned())
    }

    /// The files that are not used, with the reasons.
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().filter_map(|(name, version)| {
            let reason = version.authority.as_ref().err()?;
            Some((name.as_str(), reason.as_str()))
        })
    }
}

impl Event {
    /// Writes the event to the log.
    pub(crate) fn log(&self) {
        match self {
            Self::Used(file, authority) => {
                let (namespace, cluster) = (&authority.cluster.namespace, &authority.cluster.name);
                let key_label = &authority.key_label;
                tracing::info!(file, namespace, cluster, key_label, "serving the CA");
            }
            Self::Refused(file, reason) => tracing::error!(file, reason, "cannot use the file"),
            Self::Removed(file) => tracing::info!(file, "the file was removed"),
        }
    }
}

#[cfg(test)]
mod tests;
