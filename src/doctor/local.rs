//! Checks of the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::HEXLOWER;
use rustix::fs::{StatVfs, StatVfsMountFlags};

use super::{Doctor, either, fail, needs_root, warn};
use crate::attester::Renewal;
use crate::backoff::FailureRecord;
use crate::clock::{self, CLOCK_LEEWAY};
use crate::credential::Credential;
use crate::finding::Finding;
use crate::process::command;
use crate::store::StoreFile;
use crate::store_contents::StoreContents;

/// The free space that the store needs, in bytes. It is sufficient for each file and its temporary replacement.
const LEAST_ROOM: u64 = 1024 * 1024;

/// The time by which a run is allowed to exceed its time limit. If the run still holds the lock after this time,
/// `doctor` reports a fault.
const LATE: Duration = Duration::from_secs(10);

impl Doctor {
    /// Checks the file system of the state directory.
    pub(super) fn disk(&self) -> Finding {
        let dir = &self.settings().state_directory;
        let there = dir.ancestors().find(|path| path.exists());
        let there = there.unwrap_or(Path::new("/"));
        let place = there.display();
        let cure = |what: &str| {
            format!(
                "{what} on the file system of {place}, or set stateDirectory to a different directory"
            )
        };
        match rustix::fs::statvfs(there) {
            Err(error) => {
                let what = format!("cannot examine {place}: {error}");
                fail(what, cure("check for errors"))
            }
            Ok(disk) => match fault(&disk) {
                Some((why, what)) => fail(format!("the file system of {place} {why}"), cure(what)),
                None => Finding::pass(format!("{place} is writable")),
            },
        }
    }

    pub(super) fn store(&self) -> Finding {
        either(self.store_found())
    }

    fn store_found(&self) -> Result<Finding, Finding> {
        let (store, stored) = self.stored()?;
        let place = self.settings().state_directory.display();
        if store.is_none() {
            let what = format!("{place} does not exist: this node has not enrolled");
            return Err(warn(what, renew("")));
        }
        if !stored.rejected.is_empty() {
            let cure = format!(
                "{}; it sets the files aside, and the node enrolls again",
                renew("")
            );
            return Err(fail(rejected(&stored.rejected), cure));
        }
        if let Some(readable_by_others) = stored.readable_by_others {
            let cure = format!(
                "run: chmod -R go= {place}; if a user has read the key, {}",
                renew(" --force")
            );
            return Err(warn(readable_by_others, cure));
        }
        Ok(Finding::pass(match (stored.origin, stored.credential) {
            (Some(origin), Some(_)) => {
                format!(
                    "{place} belongs to this machine and node {}",
                    origin.node_name
                )
            }
            (Some(_), None) => format!("{place} belongs to this machine, without a certificate"),
            (None, _) => format!("{place}: empty"),
        }))
    }

    pub(super) fn lock(&self) -> Finding {
        either(self.lock_found())
    }

    fn lock_found(&self) -> Result<Finding, Finding> {
        let dir = &self.settings().state_directory;
        needs_root(dir)?;
        let (store, _) = self.stored_or_skip()?;
        let holder = store.map(|store| store.holder()).transpose();
        let holder = holder.map_err(|failure| Finding::fail(&failure))?.flatten();
        let Some(holder) = holder else {
            return Ok(Finding::pass("free"));
        };
        let limit = self.settings().timeout + LATE;
        let since = UNIX_EPOCH + Duration::from_secs(holder.since.min(u32::MAX.into()));
        let held = clock::age(since, clock::now()).unwrap_or_default();
        if held > limit {
            let what = format!("{} is held by {holder}", dir.join("lock").display());
            return Err(fail(
                what,
                "wait for that process, or stop it; no data is lost",
            ));
        }
        Ok(Finding::pass(format!("a run is in progress: {holder}")))
    }

    pub(super) fn certificate(&self) -> Finding {
        either(self.certificate_found())
    }

    fn certificate_found(&self) -> Result<Finding, Finding> {
        let (_, stored) = self.stored_or_skip()?;
        let credential = stored.credential.map(Credential::checked).transpose();
        let credential = credential
            .map_err(|why| fail(why.to_string(), renew(" --force")))?
            .ok_or_else(|| {
                let cure = format!("correct the failures above, then {}", renew(""));
                fail("no certificate is stored", cure)
            })?;
        let (leaf, now) = (credential.leaf(), clock::now());
        let validity = leaf.validity;
        let (start, end) = (at(validity.not_before), at(validity.not_after));
        if now >= validity.not_after {
            let cure = format!(
                "{}; the node enrolls again with its bootstrap credential",
                renew("")
            );
            return Err(fail(format!("the certificate expired at {end}"), cure));
        }
        if now + CLOCK_LEEWAY < validity.not_before {
            let what = format!(
                "the certificate is not valid before {start} (clock of this machine: {})",
                at(now)
            );
            return Err(fail(what, "set the clock of this machine with NTP"));
        }
        let is_renewed = self.authenticator.attester.renewal() == Renewal::Attested;
        if validity.runs_out(now) {
            let what = format!("the certificate expires at {end}, and should have been replaced");
            let cure = if is_renewed {
                renew("")
            } else {
                "the certificate cannot be renewed: keep a bootstrap credential for use after the certificate expires"
                    .to_owned()
            };
            return Err(warn(what, cure));
        }
        let renewed = if is_renewed {
            format!("renews after {}", at(credential.renew_at()))
        } else {
            "cannot be renewed".to_owned()
        };
        let serial = HEXLOWER.encode(&leaf.serial);
        Ok(Finding::pass(format!(
            "{serial}, valid until {end}, {renewed}"
        )))
    }

    pub(super) fn last_failure(&self) -> Finding {
        either(self.failure_found())
    }

    fn failure_found(&self) -> Result<Finding, Finding> {
        let (store, stored) = self.stored_or_skip()?;
        let record = store.as_ref().and_then(FailureRecord::read);
        let Some(record) = record else {
            return Ok(Finding::pass("none since the last success"));
        };
        let at = at(UNIX_EPOCH + Duration::from_secs(record.at.min(u32::MAX.into())));
        let what = format!(
            "exit code {} (consecutive failures: {}), last at {at}: {}",
            record.code, record.count, record.message
        );
        Err(by_need(&stored)(what, record.remedy))
    }
}

/// Returns the state for a failed check that would prevent a new certificate: only a warning while the stored
/// certificate is valid.
pub(super) fn by_need(stored: &StoreContents) -> fn(String, String) -> Finding {
    if stored.valid(clock::now()).is_some() {
        |what, cure| warn(what, cure)
    } else {
        |what, cure| fail(what, cure)
    }
}

/// The fault and the hint.
fn fault(disk: &StatVfs) -> Option<(&'static str, &'static str)> {
    let room = disk.f_bavail.saturating_mul(disk.f_frsize);
    if disk.f_flag.contains(StatVfsMountFlags::RDONLY) {
        Some(("is read-only", "allow root to write"))
    } else if room < LEAST_ROOM {
        Some(("is full", "free up space"))
    } else if disk.f_files > 0 && disk.f_favail == 0 {
        Some(("has no inodes left", "remove files"))
    } else {
        None
    }
}

/// The command that runs `renew` with these options, as an instruction.
fn renew(options: &str) -> String {
    format!("run: {} renew{options}", command())
}

/// The rejected files, grouped by reason.
fn rejected(files: &BTreeMap<StoreFile, String>) -> String {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, why) in files {
        by_reason.entry(why).or_default().push(file.name());
    }
    let by_reason = by_reason.into_iter();
    let reasons: Vec<_> = by_reason
        .map(|(why, files)| format!("{why} ({})", files.join(", ")))
        .collect();
    reasons.join("; ")
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
