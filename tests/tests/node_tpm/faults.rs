//! Tests that every fault in the TPM has its own exit status, message and duration.

use std::ffi::CStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use kubelet_authenticator_test_support::api_server::Times;
use kubelet_authenticator_test_support::process::poll;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::tpm_proxy::{Commands, Fault, TpmProxy, command};

use kubelet_authenticator_tests::node::PATIENCE;
use kubelet_authenticator_tests::program;

use crate::bed::{Bed, DEVICE};

/// The time limit for a join on these nodes.
const TIMEOUT: Duration = Duration::from_secs(15);

/// The time limit for a run on a node with a credential.
const LIMIT: Duration = Duration::from_secs(5);

/// A node with a TPM in which each of these commands has this fault.
fn faulty(commands: Commands, fault: Fault) -> (Bed, TpmProxy) {
    let mut bed = Bed::new();
    let proxy = TpmProxy::before(&bed.tpm);
    proxy.inject(commands, Times::always(), fault);
    bed.node.set("tpm.tcti", proxy.tcti());
    bed.node.set("timeLimit", TIMEOUT.as_secs().to_string());
    (bed, proxy)
}

#[test]
fn a_tpm_error_exits_with_6_and_a_remedy() {
    let all = Commands::All;
    let create = Commands::One(command::CREATE_PRIMARY);
    for (commands, code, words, remedy) in [
        (all, 0x101, "is in failure mode", "switch the machine off"),
        (all, 0x100, "was not started", "switch the machine off"),
        (all, 0x12d, "a firmware update", "the TPM vendor's tool"),
        (create, 0x902, "has no free memory", "tpm2_flushcontext"),
        (create, 0x921, "is locked out", "--clear-lockout"),
        (create, 0x9a2, "requires a password", "tpm2_changeauth"),
        (
            create,
            0x185,
            "disabled endorsement hierarchy",
            "firmware's settings",
        ),
        (create, 0x2e6, "this key type", "tpm.endorsementKey"),
    ] {
        let (bed, _proxy) = faulty(commands, Fault::Answer(code));

        let run = bed.run().failed(6).saying(words).saying(remedy);

        run.saying("swtpm:host=127.0.0.1").within(TIMEOUT);
        assert!(bed.sent().is_empty());
    }
}

#[test]
fn a_hanging_tpm_exits_with_6_at_the_deadline() {
    let hangs_at = |command| {
        let (bed, _proxy) = faulty(Commands::One(command), Fault::Hang);

        bed.run()
            .failed(6)
            .saying("the TPM did not respond within")
            .within(TIMEOUT);
    };
    // The runs are parallel, because each of them uses its full time limit.
    thread::scope(|scope| {
        for command in [
            command::GET_CAPABILITY,
            command::CREATE_PRIMARY,
            command::ACTIVATE_CREDENTIAL,
            command::QUOTE,
        ] {
            scope.spawn(move || hangs_at(command));
        }
    });
}

#[test]
fn an_open_challenge_is_answered_by_the_next_run() {
    let (bed, proxy) = faulty(
        Commands::One(command::ACTIVATE_CREDENTIAL),
        Fault::Answer(0x922),
    );
    bed.run().failed(6).saying("is busy");
    assert_eq!(bed.sent().len(), 1);
    proxy.clear_faults();

    let run = renew(&bed);

    assert_eq!(run, Some(0));
    let sent = bed.sent();
    assert_eq!(sent.len(), 2);
    assert_eq!(sent[0].spki, sent[1].spki);
}

fn renew(bed: &Bed) -> Option<i32> {
    poll(PATIENCE, || (bed.run().code == Some(0)).then_some(0))
}

#[test]
fn a_stored_credential_is_printed_while_the_tpm_hangs() {
    let (mut bed, proxy) = faulty(Commands::One(command::QUOTE), Fault::Hang);
    proxy.clear_faults();
    bed.old = true;
    bed.node.set("timeLimit", "60");
    let first = bed.run().succeeded();
    proxy.inject(Commands::All, Times::always(), Fault::Hang);

    let second = bed.run().succeeded().within(LIMIT);

    assert_eq!(second.pair(), first.pair());
    second.saying("using the old credential, which is still valid");
}

#[test]
fn a_challenge_for_another_tpm_exits_with_7_and_is_not_stored() {
    let mut bed = Bed::new();
    let other = TpmMachine::new(Arc::new(Swtpm::start()), EndorsementKey::P384);
    let own = std::mem::replace(&mut bed.trusted, other.ek_public());
    bed.run().failed(7).saying("it was made for another TPM");

    bed.trusted = own;

    assert_eq!(renew(&bed), Some(0));
    let sent = bed.sent();
    assert_eq!(sent.len(), 3);
    assert!(sent.iter().all(|one| one.spki == sent[0].spki));
}

/// Limits the processes and threads of the plugin and its children. The limit does not apply to root.
fn limited_to(tasks: u32, bed: &mut Bed) {
    let limit = format!("--nproc={tasks}");
    if rustix::process::geteuid().is_root() {
        let state = bed.node.state();
        std::fs::create_dir(&state).unwrap();
        std::os::unix::fs::chown(&state, Some(61_234), Some(61_234)).unwrap();
        for folder in state.ancestors().skip(1).take(2) {
            std::fs::set_permissions(folder, Permissions::from_mode(0o711)).unwrap();
        }
        let user = ["--reuid=61234", "--regid=61234", "--clear-groups"];
        let wrapper = [&["setpriv"][..], &user, &["prlimit", &limit]].concat();
        bed.node.wrap(&wrapper);
    } else {
        // In a separate user namespace, the limit counts only the plugin's tasks.
        bed.node.wrap(&["unshare", "--user", "prlimit", &limit]);
    }
}

#[test]
fn a_plugin_that_cannot_start_a_thread_exits_with_6() {
    let (mut bed, _proxy) = faulty(Commands::All, Fault::Hang);
    // The limit allows two threads and the TPM helper.
    limited_to(3, &mut bed);

    let run = bed.run().failed(6).saying("cannot start a thread");

    assert!(!run.stderr.contains("panicked"), "{run:#?}");
}

#[test]
fn a_machine_without_a_tpm_exits_with_6_and_the_reason() {
    let mut bed = Bed::new();
    bed.node.unset("tpm.tcti");
    // A socket cannot be opened as a file, not even by root.
    let socket = bed.node.scratch().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (device, words) in [
        (
            Path::new("/dev/tpm-that-is-not-there"),
            "Linux found no TPM",
        ),
        (&socket, "cannot open "),
        (Path::new("/dev/null"), "cannot be reached"),
    ] {
        bed.node.set("tpm.device", device);
        bed.node
            .run_with(&["csr", "--dry-run"])
            .failed(6)
            .saying(words);
    }
}

/// Installs a TPM helper in which one of the names is replaced.
fn patched(bed: &mut Bed, from: &str, to: &str) {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(program(DEVICE)).unwrap();
    let named = |part: &[u8]| part == [from.as_bytes(), &[0]].concat();
    let places: Vec<usize> = (0..bytes.len() - from.len())
        .filter(|start| named(&bytes[*start..=start + from.len()]))
        .collect();
    assert!(!places.is_empty());
    for start in places {
        bytes[start..start + to.len()].copy_from_slice(to.as_bytes());
    }
    bed.set_device_program(&bytes);
}

/// The path of the dynamic loader in a program: the `PT_INTERP` header of a 64-bit little-endian ELF file.
fn loader(program: &[u8]) -> String {
    let number = |start: usize, length: usize| {
        let bytes = program[start..start + length].iter().rev();
        bytes.fold(0, |sum, byte| sum << 8 | usize::from(*byte))
    };
    let (table, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    let header = (0..count)
        .map(|index| table + index * size)
        .find(|header| number(*header, 4) == 3)
        .expect("the program names its loader");
    let (start, length) = (number(header + 8, 8), number(header + 32, 8));
    let name = CStr::from_bytes_with_nul(&program[start..start + length]).unwrap();
    name.to_str().unwrap().to_owned()
}

#[test]
fn a_device_program_that_does_not_load_exits_with_6_and_a_remedy() {
    let packages = "libtss2-esys-3.0.2-0";
    let loader = loader(&std::fs::read(program(DEVICE)).unwrap());
    let no_loader = format!("{}?", &loader[..loader.len() - 1]);
    for (from, to, words, remedy) in [
        (
            "libtss2-esys.so.0",
            "libtss2-none.so.0",
            "the library libtss2-none.so.0 for TPMs is missing",
            packages,
        ),
        (
            "Esys_ActivateCredential",
            "Esys_DoNotHaveThisOneAt",
            "undefined symbol: Esys_DoNotHaveThisOneAt",
            packages,
        ),
        (&loader, &no_loader, "has no glibc to load it", "musl"),
    ] {
        let mut bed = Bed::new();
        patched(&mut bed, from, to);
        bed.run().failed(6).saying(words).saying(remedy);
    }
    let mut bed = Bed::new();
    bed.set_device_program(b"#!/bin/sh\nexit 0\n");
    bed.run().failed(6).saying("are from different releases");
    let folder = bed.node.move_program();
    std::fs::remove_file(folder.join(DEVICE)).unwrap();
    let missing = folder.join(DEVICE).display().to_string();
    bed.node.command(&["credential"]).failed(6).saying(&format!(
        "is not {missing}, nor /usr/lib/kubelet-authenticator/"
    ));
}

#[test]
fn the_tpm_helper_ends_with_the_plugin() {
    let (mut bed, proxy) = faulty(Commands::All, Fault::Hang);
    let kept = bed.node.scratch().join("pid");
    let script = format!(
        "#!/bin/sh\necho $$ > {0}.new; mv {0}.new {0}; exec {1}\n",
        kept.display(),
        program(DEVICE).display()
    );
    bed.set_device_program(script.as_bytes());
    bed.node.set("timeLimit", "600");
    let mut plugin = bed.node.start(&[]);
    let pid = poll(PATIENCE, || std::fs::read_to_string(&kept).ok()).unwrap();
    let process = Path::new("/proc").join(pid.trim());
    poll(PATIENCE, || (!proxy.exchanges().is_empty()).then_some(())).unwrap();
    assert!(process.exists());

    plugin.kill();

    // If the process still exists, it is a zombie whose exit status has not been read.
    let ended = poll(PATIENCE, || {
        let status = std::fs::read_to_string(process.join("status"));
        status
            .map_or(true, |status| status.contains("State:\tZ"))
            .then_some(())
    });
    assert!(ended.is_some());
}
