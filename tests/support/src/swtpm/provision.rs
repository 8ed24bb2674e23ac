//! The creation of a TPM's keys and certificates.

use std::path::Path;
use std::time::Duration;

use super::Sequence;
use crate::ek_ca::EkCa;
use crate::process::{Launch, Scratch};

/// The deadline for creating a TPM, which takes a second on an idle machine. The machines that run tests are busy.
const DEADLINE: Duration = Duration::from_secs(120);

/// The attributes of a platform index that every user can read, as in the indexes that `swtpm_setup` defines for
/// certificates.
const ATTRIBUTES: &str = "ppwrite|ppread|ownerread|authread|no_da|platformcreate|writedefine";

/// Creates a new TPM in the directory `state`.
#[track_caller]
pub(super) fn make(scratch: &Scratch, state: &Path, maker: &EkCa, banks: &str) {
    let local_ca = maker.local_ca().path().display();
    let local = scratch.write(
        "localca.conf",
        format!(
            "statedir = {local_ca}\nsigningkey = {local_ca}/signkey.pem\n\
             issuercert = {local_ca}/issuercert.pem\ncertserial = {local_ca}/certserial\n"
        ),
    );
    let config = scratch.write(
        "setup.conf",
        format!(
            "create_certs_tool = /usr/bin/swtpm_localca\ncreate_certs_tool_config = {}\n\
             create_certs_tool_options = {local_ca}/options\nactive_pcr_banks = {banks}\n",
            local.display()
        ),
    );
    let log = scratch.join("swtpm_setup.log");
    let mut setup = Launch::new("swtpm_setup", "swtpm_setup")
        .args(["--tpm2", "--create-ek-cert", "--overwrite"])
        .arg("--tpmstate")
        .arg(state)
        .arg("--config")
        .arg(config)
        .args(["--pcr-banks", banks])
        .spawn(&log);
    let status = setup.wait(DEADLINE);
    assert!(status.success(), "swtpm_setup: {status}{}", setup.log());
}

/// Copies the state of a TPM.
#[track_caller]
pub(super) fn copy(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).expect("a TPM has a directory") {
        let file = file.expect("the directory can be listed");
        // The lock belongs to the running TPM.
        if file.file_name() != ".lock" {
            std::fs::copy(file.path(), to.join(file.file_name())).expect("the file can be copied");
        }
    }
}

/// Stores a certificate in a platform index.
#[track_caller]
pub(super) fn write_certificate(sequence: &Sequence<'_>, index: u32, der: &[u8]) {
    let (index, size) = (format!("{index:#010x}"), der.len().to_string());
    // The index might not exist.
    sequence.run(&["tpm2_nvundefine", "-C", "p", &index]).ok();
    sequence.write("certificate", der);
    sequence.must(&[
        "tpm2_nvdefine",
        &index,
        "-C",
        "p",
        "-s",
        &size,
        "-a",
        ATTRIBUTES,
    ]);
    sequence.must(&["tpm2_nvwrite", &index, "-C", "p", "-i", "certificate"]);
}
