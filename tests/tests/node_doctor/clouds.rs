//! Tests of instances, and of machines with TPMs.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use kubelet_authenticator_test_support::api_server::{ApiServer, Times};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::ek_ca::{EkContents, vendors};
use kubelet_authenticator_test_support::imds::{Credentials, Fault, Imds, Instance, Route};
use kubelet_authenticator_test_support::instance_identity::{Document, TestSigner};
use kubelet_authenticator_test_support::process::Scratch;
use kubelet_authenticator_test_support::swtpm::Swtpm;
use kubelet_authenticator_test_support::tpm_machine::{EndorsementKey, TpmMachine};
use kubelet_authenticator_test_support::tpm_proxy::{self, Commands, TpmProxy, command};
use kubelet_authenticator_tests::node::Node;
use kubelet_authenticator_tests::page::steps;
use kubelet_authenticator_tests::{program, tpm};
use sha2::{Digest as _, Sha256};

use crate::bed::{Bed, LIMIT};

pub const ACCOUNT: &str = "123456789012";
pub const INSTANCE: &str = "i-0123456789abcdef0";
pub const NAME: &str = "ip-10-0-0-1.eu-west-1.compute.internal";
const AWS: &str = "kubelet-authenticator-aws";

/// All tests share this key, because it takes a long time to generate.
static SIGNER: LazyLock<TestSigner> = LazyLock::new(|| TestSigner::new([0x81; 8]));

/// An instance that is ready to join.
pub fn instance() -> (Bed, Imds) {
    let document = Document::new(ACCOUNT, "eu-west-1", "eu-west-1a", INSTANCE);
    let imds = Imds::start(Instance {
        local_hostname: NAME.to_owned(),
        document: document.to_json().into_bytes(),
        rsa2048: SIGNER.sign(&document),
        identity_credentials: Some(Credentials {
            access_key_id: "ASIA0123456789ABCDEF".to_owned(),
            secret_access_key: "secret".repeat(7),
            session_token: "IQoJb3JpZ2luX2Vj".to_owned(),
            expiration: now() + std::time::Duration::from_secs(3600),
        }),
        ..Instance::new("eu-west-1", "eu-west-1a", INSTANCE)
    });
    let server = ApiServer::start();
    let mut node = Node::new(AWS, &server);
    node.set("nodeName", NAME);
    node.unset("providerID");
    node.set("aws.metadataEndpoint", imds.url());
    node.set("aws.stsEndpoint", "127.0.0.1:443");
    (Bed::of(AWS, server, node), imds)
}

/// A machine with a TPM that is ready to join.
pub fn tpm_machine() -> (Bed, TpmMachine) {
    machine_of(Swtpm::start())
}

fn machine_of(tpm: Swtpm) -> (Bed, TpmMachine) {
    let machine = TpmMachine::new(Arc::new(tpm), EndorsementKey::P384);
    let server = ApiServer::start();
    let node = tpm::node(&machine, &server);
    (Bed::of(tpm::PLUGIN, server, node), machine)
}

#[test]
fn doctor_reports_a_metadata_service_that_does_not_answer() {
    let (bed, imds) = instance();
    imds.inject(Route::token(), Times::always(), Fault::Hang);

    let examined = bed.first_failing(
        "metadata-service",
        "cannot read the instance's identity: the instance metadata service at http://127.0.0.1:",
        "HttpPutResponseHopLimit",
    );
    examined.says("metadata-service", "fail", "hop limit");
    for name in ["instance-credentials", "instance-name", "sts"] {
        examined.says(
            name,
            "skip",
            "the instance metadata service does not provide the identity of the instance",
        );
    }
    examined.run.within(LIMIT);

    imds.clear_faults();
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn doctor_reports_expired_credentials_and_a_wrong_name() {
    let (mut bed, imds) = instance();
    bed.node.command(&["renew"]).succeeded();
    let end = |seconds: i64| {
        imds.update(|instance| {
            let credentials = instance.identity_credentials.as_mut().unwrap();
            credentials.expiration = if seconds < 0 {
                now() - std::time::Duration::from_secs(seconds.unsigned_abs())
            } else {
                now() + std::time::Duration::from_secs(seconds.unsigned_abs())
            };
        });
    };

    end(-60);
    bed.first_failing(
        "instance-credentials",
        "the instance's credentials expire at ",
        "NTP",
    );
    end(3600);
    imds.update(|instance| {
        instance.local_hostname = "ip-10-0-0-2.eu-west-1.compute.internal".to_owned()
    });
    bed.first_failing(
        "instance-name",
        &format!("the node name is {NAME}, but EC2 expects ip-10-0-0-2"),
        "start the kubelet with --hostname-override=ip-10-0-0-2.eu-west-1.compute.internal",
    );
    imds.update(|instance| instance.local_hostname = NAME.to_owned());
    bed.is_well();
    bed.node.set("aws.stsEndpoint", "sts.invalid");
    let examined = bed.doctor();
    examined.says("sts", "warn", "this machine cannot resolve sts.invalid");
}

#[test]
fn doctor_reports_a_missing_tpm_helper_or_tpm() {
    let (mut bed, machine) = tpm_machine();
    let folder = bed.node.move_program();
    bed.node.run().failed(6);

    bed.first_failing(
        "tpm-program",
        "cannot use the TPM: the TPM helper is not installed",
        "install the package kubelet-authenticator-tpm-device",
    );

    let device = "kubelet-authenticator-tpm-device";
    symlink(program(device), folder.join(device)).unwrap();
    bed.node.unset("tpm.tcti");
    bed.node.set("tpm.device", "/nonexistent/tpmrm0");
    bed.first_failing(
        "tpm",
        "Linux found no TPM in this machine: /nonexistent/tpmrm0 does not exist",
        "enable the TPM 2.0 in the firmware",
    );

    bed.node.set("tpm.tcti", machine.tpm().tcti());
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
}

#[test]
fn doctor_reports_a_tpm_that_fails_hangs_or_has_no_certificate() {
    let (mut bed, machine) = tpm_machine();
    bed.node.command(&["renew"]).succeeded();
    let tpm = machine.tpm();
    let proxy = TpmProxy::before(tpm);
    bed.node.set("tpm.tcti", proxy.tcti());
    let create = Commands::One(command::CREATE_PRIMARY);

    proxy.inject(create, Times::always(), tpm_proxy::Fault::Answer(0x902));
    let examined = bed.first_failing("tpm", "", "tpm2_flushcontext");
    examined.says("tpm", "fail", "has no free memory");
    proxy.clear_faults();
    proxy.inject(create, Times::always(), tpm_proxy::Fault::Hang);
    let examined = bed.first_failing("tpm", "", "");
    examined.says("tpm", "fail", "the TPM did not respond within");
    examined.run.within(LIMIT);
    proxy.clear_faults();

    bed.is_well();
    // The P-256 key does not have a certificate.
    bed.node.set("tpm.endorsementKey", "ecc-p256");
    let examined = bed.doctor();
    examined.says("tpm", "pass", "with an endorsement key ecc-p256");
    examined.says(
        "endorsement-certificate",
        "warn",
        "has no certificate for its endorsement key",
    );
    assert!(
        examined
            .check("endorsement-certificate")
            .cure
            .contains("kubelet-authenticator-tpm identify")
    );
}

/// The response of a TPM helper to a request that only a later version supports.
const UNKNOWN: &str = r#"{"Err":"Question"}"#;

/// Installs a TPM helper that does not support the request for the boot measurements, and that responds to the version
/// request with `version`. This helper passes all other requests to the real helper.
fn install_older_helper(bed: &mut Bed, version: &str) {
    let name = "kubelet-authenticator-tpm-device";
    let script = format!(
        "#!/bin/sh\nread -r line\ncase $line in\n\
         *'\"Examine\"'*) echo '{UNKNOWN}' ;;\n\
         *'\"Version\"'*) echo '{version}' ;;\n\
         *) exec {} <<E\n$line\nE\n;;\nesac\n",
        program(name).display()
    );
    let path = bed.node.move_program().join(name);
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_helper_without_a_check_is_a_warning_with_its_version() {
    let (mut bed, _machine) = tpm_machine();
    bed.node.command(&["renew"]).succeeded();
    for (answer, version) in [
        (r#"{"Ok":{"version":"0.0.9"}}"#, "version 0.0.9"),
        // The first version of the TPM helper does not support this request.
        (UNKNOWN, "an earlier version"),
    ] {
        install_older_helper(&mut bed, answer);
        bed.node.unset("tpm.endorsementKey");
        // The node works: it renews its certificate, and no check fails.
        bed.node.command(&["renew"]).succeeded();
        bed.is_well();

        let examined = bed.doctor();

        let unsupported = format!("-device has {version}, which does not support this check");
        examined.says("boot-measurements", "warn", &unsupported);
        let cure = &examined.check("boot-measurements").cure;
        let update =
            "update the package kubelet-authenticator-tpm-device to the version of this plugin";
        assert!(cure.starts_with(update), "{cure}");
        examined.says("endorsement-certificate", "pass", "issued by");
        // This helper does not report whether the index for this key is defined.
        bed.node.set("tpm.endorsementKey", "ecc-p256");
        let examined = bed.doctor();
        let unreadable = "the TPM has no readable certificate for its endorsement key";
        examined.says("endorsement-certificate", "warn", unreadable);
        let cure = &examined.check("endorsement-certificate").cure;
        assert!(!cure.contains("tpm2_nvdefine"), "{cure}");
    }
    // The node cannot use a helper that does not support the request for the keys.
    let name = "kubelet-authenticator-tpm-device";
    let path = bed.node.move_program().join(name);
    std::fs::write(
        &path,
        format!("#!/bin/sh\nread -r line\necho '{UNKNOWN}'\n"),
    )
    .unwrap();
    let examined = bed.first_failing("tpm", "", "update the package");
    examined.says("tpm", "fail", "are from different releases");
    examined.says("boot-measurements", "skip", "the TPM does not respond");
}

/// Runs these commands in a directory that contains this file.
#[track_caller]
fn follow(commands: &[String], machine: &TpmMachine, (name, content): (&str, &[u8])) {
    let folder = Scratch::new("certificate");
    folder.write(name, content);
    let output = Command::new("sh")
        .args(["-euc", &commands.join("\n")])
        .current_dir(folder.path())
        .env("TPM2TOOLS_TCTI", machine.tpm().tcti())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// The commands in a hint that access NV indices.
fn commands_of(cure: &str) -> Vec<String> {
    let parts = cure.split('`').filter(|part| part.starts_with("tpm2_nv"));
    parts.map(str::to_owned).collect()
}

#[test]
fn an_endorsement_certificate_stored_as_documented_is_read() {
    let (mut bed, machine) = tpm_machine();
    bed.node.set("tpm.endorsementKey", "ecc-p256");
    let machine = machine.with_endorsement_key(EndorsementKey::P256);
    let maker = machine.tpm().maker().clone();
    let certificate = maker.certify(&machine.ek_spki(), &EkContents::good());
    let cure = || bed.doctor().check("endorsement-certificate").cure.clone();
    let of_page = steps("node-evidence.md", "### TPMs without a certificate").into_iter();
    let of_page = of_page.map(|(_, command)| command);
    let (to_store, others): (Vec<String>, Vec<String>) =
        of_page.partition(|command| command.starts_with("tpm2_nv"));
    let convert = others
        .into_iter()
        .find(|command| command.starts_with("sed "));
    let convert = convert.unwrap();

    assert_eq!(commands_of(&cure()), to_store);
    // Without `--raw`, tpm2_getekcertificate prints this text for an Intel TPM.
    let text = vendors::pem(&certificate);
    follow(&to_store, &machine, ("ek.der", text.as_bytes()));

    let words = "the TPM's index for the certificate contains text instead of DER";
    bed.doctor().says("endorsement-certificate", "warn", words);
    let again = commands_of(&cure());
    assert_eq!(again[0], "tpm2_nvundefine 0x1c0000a -C o");
    assert_eq!(again[1..], to_store);
    // Intel's service responds in this format.
    let encoded = URL_SAFE.encode(&certificate).replace('=', "%3D");
    let answer = format!(r#"{{"pubhash":"LrZo_-SBo%3D","certificate":"{encoded}"}}"#);
    let follows = [&[convert][..], &again[..]].concat();
    follow(&follows, &machine, ("ek.json", answer.as_bytes()));

    let examined = bed.doctor();
    let words = "issued by CN=TPM maker of a test intermediate 1, expires on 9999-12-31";
    examined.says("endorsement-certificate", "pass", words);
    let soon = EkContents {
        not_after: now() + std::time::Duration::from_secs(80 * 24 * 3600),
        ..EkContents::good()
    };
    let index = EndorsementKey::P256.certificate_index();
    let soon = maker.certify(&machine.ek_spki(), &soon);
    machine.tpm().write_certificate(index, &soon);
    let words = "the certificate expires soon: issued by CN=TPM maker";
    bed.doctor().says("endorsement-certificate", "warn", words);
    let of_another = machine.with_endorsement_key(EndorsementKey::P384);
    let of_another = maker.certify(&of_another.ek_spki(), &EkContents::good());
    machine.tpm().write_certificate(index, &of_another);
    let words = "the certificate in the TPM does not match the endorsement key";
    bed.doctor().says("endorsement-certificate", "warn", words);
}

#[test]
fn a_withheld_certificate_is_read_after_the_hint_is_followed() {
    let (mut bed, machine) = tpm_machine();
    bed.node.set("tpm.endorsementKey", "ecc-p256");
    let machine = machine.with_endorsement_key(EndorsementKey::P256);
    let maker = machine.tpm().maker().clone();
    let certificate = maker.certify(&machine.ek_spki(), &EkContents::good());
    // Only the owner can read the first index. A wrong password for the second index counts toward the lockout.
    for attributes in ["ownerread|no_da", "ownerread|authread"] {
        let define = "tpm2_nvdefine 0x1c0000a -C o -s \"$(stat -c %s ek.der)\"";
        let define = format!("{define} -a 'ownerwrite|{attributes}'");
        let write = "tpm2_nvwrite 0x1c0000a -C o -i ek.der".to_owned();
        follow(&[define, write], &machine, ("ek.der", &certificate));
        let examined = bed.doctor();
        let withheld = "the TPM does not allow every user to read its endorsement key certificate";
        examined.says("endorsement-certificate", "warn", withheld);

        let commands = commands_of(&examined.check("endorsement-certificate").cure);
        assert_eq!(commands.len(), 4, "{commands:?}");
        follow(&commands, &machine, ("other", b""));

        let examined = bed.doctor();
        examined.says("endorsement-certificate", "pass", "issued by CN=TPM maker");
        let undefine = "tpm2_nvundefine 0x1c0000a -C o".to_owned();
        follow(&[undefine], &machine, ("other", b""));
    }
}

#[test]
fn an_unmeasured_boot_is_a_warning() {
    let (bed, machine) = machine_of(Swtpm::unmeasured());
    let tpm = machine.tpm();
    // Firmware extends the PCRs with this digest of a separator.
    let separator: [u8; 32] = Sha256::digest([0; 4]).into();
    let all = "PCRs 0, 1, 2, 3, 4, 5, 6, 7 (SHA-256): any operating system can extend these PCRs";

    bed.doctor().says("boot-measurements", "warn", all);
    for number in 0..=7 {
        tpm.extend(number, &separator);
    }
    let separated = "PCRs 0, 4, 7 (SHA-256)";
    bed.doctor().says("boot-measurements", "warn", separated);
    for number in [0, 4, 7] {
        tpm.extend(number, &[1; 32]);
    }
    let examined = bed.doctor();
    examined.says("boot-measurements", "pass", "measures the boot (SHA-256)");
    let (mut bed, _machine) = tpm_machine();
    let without = Swtpm::with_banks("sha1");
    bed.node.set("tpm.tcti", without.tcti());
    let examined = bed.first_failing("boot-measurements", "", "echo 23 2");
    examined.says(
        "boot-measurements",
        "fail",
        "not have a SHA-256 or SHA-384 bank",
    );
}
