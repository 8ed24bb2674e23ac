//! The state directory.

use std::path::Path;
use std::time::SystemTime;

use serde_json::Value;

use super::{at, at_second, certificate, request};
use crate::backoff::FailureRecord;
use crate::failure::{Code, Failure};
use crate::machine::Machine;
use crate::pending::Pending;
use crate::process::command;
use crate::sheet::Sheet;
use crate::store::{Store, StoreFile};
use crate::store_contents::StoreContents;

/// Decodes the state directory, and checks it in the same way as a run on `machine`.
///
/// # Errors
///
/// The directory does not exist, is unsafe, or cannot be read at all.
pub(crate) fn store(dir: &Path, machine: &Machine, now: SystemTime) -> Result<Sheet, Failure> {
    let Some(store) = Store::look(dir)? else {
        let what = format!(
            "{} does not exist: this node has not enrolled",
            dir.display()
        );
        return Err(Failure::new(
            Code::Store,
            what,
            format!(
                "specify the path of the state directory, or run: {} renew",
                command()
            ),
        ));
    };
    let contents = StoreContents::load(&store, machine)?;
    let mut sheet = Sheet::default();
    sheet.text("directory", "Directory", dir.display().to_string());
    sheet.list("files", "Files", &files(&store)?);
    let rejected = contents.rejected.iter();
    let rejected = rejected.map(|(file, why)| format!("{}: {why}", file.name()));
    sheet.list(
        "setAsideNext",
        "Invalid files",
        &rejected.collect::<Vec<_>>(),
    );
    if let Some(warning) = &contents.readable_by_others {
        sheet.text("warning", "Warning", warning);
    }
    let origin = contents.origin.as_ref();
    let node = origin.map(|origin| origin.node_name.to_string());
    sheet.text_or("nodeName", "Node", node, "unknown");
    let server = origin.map(|origin| origin.endpoint.server.clone());
    sheet.text_or("server", "API server", server, "unknown");
    match store.read(StoreFile::Credential)? {
        None => sheet.value("certificate", "Certificate", Value::Null, "none"),
        Some(text) => match certificate::sheet(&text, now) {
            Ok(part) => sheet.part("certificate", "Certificate", part),
            Err(why) => sheet.text("certificate", "Certificate", format!("not decoded: {why}")),
        },
    }
    match store.read(StoreFile::Pending)? {
        None => sheet.value("pending", "Pending request", Value::Null, "none"),
        Some(text) => match Pending::parse(&text) {
            Ok(pending) => sheet.part("pending", "Pending request", of_pending(&pending)),
            Err(why) => sheet.text("pending", "Pending request", format!("not decoded: {why}")),
        },
    }
    match FailureRecord::read(&store) {
        None => sheet.value("lastFailure", "Last failure", Value::Null, "none"),
        Some(record) => sheet.part("lastFailure", "Last failure", of_failure(&record, now)),
    }
    let remembered = store.read(StoreFile::Remembered)?;
    let remembered = remembered.map(|text| text.to_string());
    sheet.text_or("endorsementKey", "Endorsement key kind", remembered, "none");
    let holder = store.holder()?.map(|holder| holder.to_string());
    sheet.text_or("lockHolder", "Lock", holder, "free");
    Ok(sheet)
}

/// Returns the name, mode, size and time of each file, including quarantined files.
fn files(store: &Store) -> Result<Vec<String>, Failure> {
    let files = store.list()?.into_iter();
    let files = files.map(|file| {
        let (name, mode, length) = (file.name, file.mode, file.length);
        format!("{name} {mode:04o} {length} bytes {}", at(file.modified))
    });
    Ok(files.collect())
}

fn of_pending(pending: &Pending) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.value(
        "privateKey",
        "Private key",
        "present",
        "present (not shown)",
    );
    let Some(open) = &pending.request else {
        sheet.value("name", "Name", Value::Null, "none (only a key is stored)");
        return sheet;
    };
    sheet.text("name", "Name", &open.name);
    sheet.text("created", "Created", at_second(open.created));
    let sent = if open.acknowledged {
        "yes"
    } else {
        "not confirmed by the API server"
    };
    sheet.value("acknowledged", "Sent", open.acknowledged, sent);
    let answers = if open.answers { "yes" } else { "no" };
    sheet.value("answers", "Answers challenge", open.answers, answers);
    sheet.text("signer", "Signer", &open.subject.signer_name);
    match request::of_bytes(&open.bytes) {
        Ok(part) => sheet.part("request", "Request", part),
        Err(why) => sheet.text("request", "Request", format!("not decoded: {why}")),
    }
    sheet
}

fn of_failure(record: &FailureRecord, now: SystemTime) -> Sheet {
    let mut sheet = Sheet::default();
    let code = record.code;
    sheet.value("exitCode", "Exit code", code, code.to_string());
    sheet.text("message", "Error", &record.message);
    sheet.text("remedy", "Hint", &record.remedy);
    let count = record.count;
    sheet.value("count", "Consecutive failures", count, count.to_string());
    let in_vain = record.in_vain;
    sheet.value(
        "failedRequests",
        "Failed requests",
        in_vain,
        in_vain.to_string(),
    );
    sheet.text("at", "At", at_second(record.at));
    let until = at_second(record.not_before);
    let is_over = until <= at(now);
    let words = if is_over {
        format!("{until} (over)")
    } else {
        until.clone()
    };
    sheet.value("nextAttemptNotBefore", "Next attempt", until, words);
    sheet
}
