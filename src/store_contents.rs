//! The contents of the store, checked before use.

use std::collections::BTreeMap;
use std::time::SystemTime;

use kubelet_attestation::errors::error_chain;

use crate::attester::Renewal;
use crate::credential::Credential;
use crate::failure::{Code, Failure};
use crate::machine::{Machine, MachineDigest};
use crate::origin::Origin;
use crate::process::command;
use crate::rotation::Rotation;
use crate::store::{Store, StoreFile};

/// The reason to reject a valid credential or key that no origin ties to this machine.
const USELESS_ORIGIN: &str = "its origin.json is missing or invalid";

/// The contents of the store.
#[derive(Debug, Default)]
pub(crate) struct StoreContents {
    /// The machine, node and cluster of the credential.
    pub(crate) origin: Option<Origin>,
    /// The credential. Set only with an origin that matches this machine and the credential's node.
    pub(crate) credential: Option<Credential>,
    /// The files to quarantine, each with the reason.
    pub(crate) rejected: BTreeMap<StoreFile, String>,
    /// A warning if others could read the credential's key.
    pub(crate) readable_by_others: Option<String>,
    /// The ID of this boot.
    pub(crate) boot_id: Option<String>,
    /// The digest of this machine, if this run compared it with the origin file. The plugin makes this comparison once
    /// per boot.
    pub(crate) machine: Option<MachineDigest>,
}

impl StoreContents {
    /// Reads the origin and the credential.
    ///
    /// Does not change any content. Rejected files are listed, and a run that holds the lock quarantines them.
    ///
    /// # Errors
    ///
    /// The store is unsafe, or cannot be read. This includes a store that a later release wrote in a different format.
    /// The credential in such a store is kept.
    pub(crate) fn load(store: &Store, machine: &Machine) -> Result<Self, Failure> {
        let mut stored = Self {
            boot_id: machine.boot_id(),
            ..Self::default()
        };
        // Read the credential before the origin, because an enrollment writes the origin first. Therefore, a reader
        // without the lock never finds a new credential without its origin.
        let credential = store.read_key(StoreFile::Credential)?;
        stored.load_origin(store, machine)?;
        if let Some((text, readable_by_others)) = credential {
            stored.readable_by_others = readable_by_others;
            stored.judge(&text);
        }
        Ok(stored)
    }

    fn load_origin(&mut self, store: &Store, machine: &Machine) -> Result<(), Failure> {
        let Some(text) = store.read(StoreFile::Origin)? else {
            return Ok(());
        };
        match Origin::parse(&text) {
            Ok(origin) => {
                if self.is_of_this_machine(&origin, machine) {
                    self.origin = Some(origin);
                } else {
                    for file in StoreFile::ALL {
                        self.reject(file, "it belongs to a different machine");
                    }
                }
            }
            Err(error) if Origin::is_of_later_release(&text) => {
                let place = store.path(StoreFile::Origin).display().to_string();
                let what = format!("{place} is from a later release: {}", error_chain(&error));
                let remedy = format!(
                    "install that release again; or, to delete the state and enroll again, run: {} reset --yes",
                    command()
                );
                return Err(Failure::new(Code::Store, what, remedy));
            }
            Err(error) => {
                self.reject(StoreFile::Origin, error_chain(&error));
                // Only the origin shows to which machine the key belongs.
                self.reject(StoreFile::Pending, USELESS_ORIGIN);
            }
        }
        Ok(())
    }

    /// Whether the origin belongs to this machine. If the origin already matched in this boot, the function does not
    /// compare the machines again.
    fn is_of_this_machine(&mut self, origin: &Origin, machine: &Machine) -> bool {
        if self.boot_id.is_some() && self.boot_id == origin.boot_id {
            return true;
        }
        let identity = machine.identity();
        self.machine = Some(identity.digest().clone());
        !identity.differs_from(&origin.machine)
    }

    fn judge(&mut self, text: &str) {
        let Some(origin) = &self.origin else {
            let why = if self.rejected.is_empty() {
                "without origin.json, its machine is unknown"
            } else {
                USELESS_ORIGIN
            };
            self.reject(StoreFile::Credential, why);
            return;
        };
        let mut read = Credential::from_store(text);
        if self.machine.is_some() {
            // Make this check only once per boot, like the comparison of the machine, because it takes more time than
            // all other checks here.
            read = read.and_then(Credential::checked);
        }
        match read {
            Ok(credential) if credential.leaf().node_name.as_ref() == Some(&origin.node_name) => {
                self.credential = Some(credential);
            }
            Ok(_) => {
                let why = format!("it is for a different node from {}", origin.node_name);
                self.reject(StoreFile::Credential, why);
            }
            Err(error) => self.reject(StoreFile::Credential, error_chain(&error)),
        }
    }

    fn reject(&mut self, file: StoreFile, why: impl Into<String>) {
        self.rejected.entry(file).or_insert_with(|| why.into());
    }

    /// Returns the action that is due for the credential at `now`. `ca_pem` contains the cluster's CA certificates, if
    /// the caller knows them. A credential that was issued with other CA certificates is renewed.
    pub(crate) fn rotation(
        &self,
        renewal: Renewal,
        ca_pem: Option<&[u8]>,
        now: SystemTime,
    ) -> Rotation {
        let Some(credential) = &self.credential else {
            return Rotation::Enrol;
        };
        let leaf = credential.leaf();
        let ca_changed = match (ca_pem, &self.origin) {
            (Some(ca_pem), Some(origin)) => !is_same(ca_pem, origin.endpoint.ca_pem.as_bytes()),
            _ => false,
        };
        match (leaf.validity.rotation(now, leaf.jitter), renewal) {
            (Rotation::Enrol, _) => Rotation::Enrol,
            // The certificate is used until it expires.
            (Rotation::Keep | Rotation::Renew, Renewal::Impossible) => Rotation::Keep,
            (Rotation::Keep, Renewal::Attested) if !ca_changed => Rotation::Keep,
            (Rotation::Keep | Rotation::Renew, Renewal::Attested) => Rotation::Renew,
        }
    }

    /// Returns the credential, if it is valid at `now` from the point of view of an API server.
    pub(crate) fn valid(&self, now: SystemTime) -> Option<&Credential> {
        self.credential
            .as_ref()
            .filter(|credential| credential.validity().holds_at(now))
    }
}

/// The provider's text about its evidence: the first line. A later release can add other lines.
pub(crate) fn remembered(store: &Store) -> Option<String> {
    let text = store.read(StoreFile::Remembered).ok().flatten()?;
    Some(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// Compares eight bytes at a time, and is therefore faster than musl's `memcmp`.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let (words, rest) = one.as_chunks();
    let (other_words, other_rest) = other.as_chunks();
    let mut pairs = words.iter().zip(other_words);
    one.len() == other.len()
        && pairs.all(|(one, other)| u64::from_ne_bytes(*one) == u64::from_ne_bytes(*other))
        && rest == other_rest
}

#[cfg(test)]
mod tests;
