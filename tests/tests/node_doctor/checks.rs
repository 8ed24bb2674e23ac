//! Tests of the checks that `causes.rs` and `clouds.rs` do not cover, and of the findings of these checks.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::api_server::{
    ApiServer, ConnectionFault, Route, Step, Times, Verb, exec_info,
};
use kubelet_authenticator_test_support::clock::now;
use kubelet_authenticator_test_support::pki::CertificateAuthority;
use kubelet_authenticator_tests::node::{INSECURE, NODE, NULL, Node, PATIENCE};
use kubelet_authenticator_tests::program;

use crate::bed::{Bed, LIMIT, set_mode};

/// A script that runs the test on a read-only or full file system, in a separate mount namespace.
const READ_ONLY: &str = r#"PATH=/usr/sbin:/usr/bin:/sbin:/bin
    mount --bind "$DIR" "$DIR" && mount -o remount,ro,bind "$DIR" && exec "$@""#;
const FULL: &str = r#"PATH=/usr/sbin:/usr/bin:/sbin:/bin
    mount -t tmpfs -o size=64k,mode=700 tmpfs "$DIR" && exec "$@""#;

#[test]
fn invalid_settings_do_not_hide_other_checks() {
    let mut bed = Bed::joined();
    bed.server.set_date_skew(600);
    let config = bed.node.scratch().write("config.yaml", "nodeNam: x\n");
    bed.node.set("config", &config);

    let place = config.display().to_string();
    let examined = bed.first_failing("settings", "", "");
    examined.says("settings", "fail", &place);
    examined.says("settings", "fail", "nodeNam");
    assert_eq!(examined.names("fail"), ["settings", "clock"]);
    examined.says("state-directory", "pass", "node n1");

    bed.server.set_date_skew(0);
    fs::write(&config, "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\nkind: KubeletAuthenticatorConfiguration\n").unwrap();
    bed.is_well();
    set_mode(&config, 0o666);
    let examined = bed.doctor();
    examined.says("settings", "fail", "so other users can write it");
    set_mode(&config, 0o644);
    bed.node.set_env("KUBELET_AUTHENTICATOR_NODE_NAME", "n2");
    let examined = bed.doctor();
    let leftover = "ignored: KUBELET_AUTHENTICATOR_NODE_NAME";
    examined.says("settings", "warn", leftover);
}

#[test]
fn an_unreachable_api_server_is_reported_as_one_failure() {
    let bed = Bed::joined();
    let network = "check that";
    for (fault, words, cure) in [
        (
            ConnectionFault::Close,
            "cannot reach https://127.0.0.1",
            network,
        ),
        (
            ConnectionFault::AnotherAuthority,
            "is not signed by the cluster's CA",
            "check the server and the CA in the kubeconfig",
        ),
        (
            ConnectionFault::ExpiredCertificate,
            "the server's certificate expired at ",
            "renew the API server's certificate, or set the clock of this machine with NTP",
        ),
        (
            ConnectionFault::NotYetValidCertificate,
            " (clock of this machine: ",
            "set the clock of this machine with NTP",
        ),
        (
            ConnectionFault::SilentAtTls,
            "did not respond in time",
            network,
        ),
    ] {
        bed.server.inject_connection(Times::always(), fault);

        let examined = bed.first_failing("api-server", "", cure);

        examined.says("api-server", "fail", words);
        assert_eq!(examined.names("fail"), ["api-server"], "{fault:?}");
        for name in ["clock", "certificate-accepted", "bootstrap-kubeconfig"] {
            assert_eq!(examined.state(name), "skip", "{fault:?}");
        }
        examined.run.within(LIMIT);
        bed.server.clear_faults();
    }
    bed.is_well();
}

#[test]
fn a_kubelet_kubeconfig_with_too_many_ca_certificates_fails_the_check() {
    let bed = Bed::joined();
    let ca = bed.server.ca_pem();
    let many = STANDARD.encode(ca.repeat(100 * 1024 / ca.len()));
    bed.change_kubelet_kubeconfig(&STANDARD.encode(ca), &many);

    let examined = bed.doctor();

    examined.says("kubelet-kubeconfig", "fail", "Linux allows at most 131072");
}

#[test]
fn a_kubelet_kubeconfig_with_a_wrong_exec_section_fails_the_check() {
    let bed = Bed::joined();
    let path = bed.kubelet_kubeconfig();
    let good = fs::read_to_string(&path).unwrap();
    for (from, to, state, words) in [
        (
            "client.authentication.k8s.io/v1",
            "client.authentication.k8s.io/v1alpha1",
            "fail",
            "apiVersion of the plugin is missing or not supported: \"client.authentication.k8s.io/v1alpha1\"",
        ),
        (
            "interactiveMode: Never",
            "interactiveMode: Always",
            "fail",
            "interactiveMode of the plugin is missing or invalid: \"Always\"",
        ),
        (
            "      interactiveMode: Never\n",
            "",
            "fail",
            "interactiveMode of the plugin is missing or invalid: \"\"",
        ),
        (
            "provideClusterInfo: true",
            "provideClusterInfo: false",
            "warn",
            "provideClusterInfo is not true",
        ),
        (
            "    exec:\n",
            "    token: abc\n    exec:\n",
            "fail",
            "a token or certificate, which the kubelet uses",
        ),
        (
            bed.plugin.to_str().unwrap(),
            "kubelet-authenticator-null",
            "fail",
            "is not an absolute path",
        ),
        (
            bed.plugin.to_str().unwrap(),
            "/bin/true",
            "warn",
            "runs /bin/true instead of kubelet-authenticator-null",
        ),
    ] {
        bed.change_kubelet_kubeconfig(from, to);
        let examined = bed.doctor();
        examined.says("kubelet-kubeconfig", state, words);
        // The hint contains the path of this plugin, which differs from the path in the packages.
        let cure = &examined.check("kubelet-kubeconfig").cure;
        let command = cure
            .split('`')
            .find(|words| words.contains(" render kubeconfig"));
        let command = command.unwrap_or_else(|| panic!("no command in {cure}"));
        let words: Vec<&str> = command.split(' ').skip(1).collect();
        let rendered = bed.node.command(&words).succeeded().stdout;
        fs::write(&path, rendered).unwrap();
        bed.is_well();
        fs::write(&path, &good).unwrap();
    }

    bed.server
        .write_bootstrap_kubeconfig(bed.node.scratch().path(), "abcdef.0123456789abcdef");
    fs::copy(bed.bootstrap_kubeconfig(), &path).unwrap();
    bed.first_failing(
        "kubelet-kubeconfig",
        &format!(
            "{} contains a credential instead of the plugin",
            path.display()
        ),
        &format!("run: {} setup --from ", program(NULL).display()),
    );
    fs::remove_file(&path).unwrap();
    bed.first_failing(
        "kubelet-kubeconfig",
        &format!("cannot read {}: No such file", path.display()),
        "a drop-in that runs `setup`",
    );

    fs::write(&path, good).unwrap();
    bed.is_well();
}

#[test]
fn doctor_reports_a_kubelet_of_another_cluster() {
    let bed = Bed::joined();
    let other = ApiServer::start();
    other.kubeconfig().write(&bed.bootstrap_kubeconfig());
    bed.write_kubelet_kubeconfig();

    let words = format!(
        "this node is enrolled with the cluster at {}",
        bed.server.url()
    );
    let examined = bed.first_failing("cluster", &words, "use a kubeconfig of the node's cluster");
    assert_eq!(examined.state("api-server"), "pass");

    bed.server
        .write_bootstrap_kubeconfig(bed.node.scratch().path(), "abcdef.0123456789abcdef");
    bed.write_kubelet_kubeconfig();
    bed.is_well();
}

#[test]
fn a_new_server_address_or_ca_bundle_is_stored_by_the_next_run() {
    let next = CertificateAuthority::new("next");
    for (plugin, creates, cure) in [
        (
            NULL,
            2,
            "no action is needed: the next run renews the certificate",
        ),
        (
            INSECURE,
            1,
            "no action is needed: when the kubelet runs the plugin again, the plugin stores the new CA certificates",
        ),
    ] {
        let server = ApiServer::start();
        let node = Node::new(plugin, &server);
        let mut bed = Bed::of(plugin, server, node);
        bed.node.run().succeeded();
        let is_known = format!("{} belongs to this cluster", bed.server.url());

        // The API server moves. The kubelet's kubeconfig contains the new address.
        bed.node.change("origin.json", |origin| {
            origin["endpoint"]["server"] = "https://127.0.0.1:1".into();
        });
        let examined = bed.doctor();
        examined.says("api-server", "pass", &is_known);
        examined.says("cluster", "pass", &bed.server.url());
        examined.says("certificate-accepted", "pass", "accepts the node's writes");
        bed.node.run().succeeded();
        let stored = |bed: &Bed| bed.node.json("origin.json")["endpoint"].clone();
        assert_eq!(stored(&bed)["server"], bed.server.url(), "{plugin}");
        bed.is_well();

        // The cluster gets a second CA certificate.
        let ca = bed.server.ca_pem().to_owned();
        let both = format!("{ca}{}", next.certificate_pem());
        bed.change_kubelet_kubeconfig(&STANDARD.encode(ca), &STANDARD.encode(&both));
        let examined = bed.doctor();
        examined.says("api-server", "pass", &is_known);
        let changed = "the cluster's CA certificates have changed since the node enrolled";
        examined.says("cluster", "warn", changed);
        assert_eq!(examined.check("cluster").cure, cure);
        assert_eq!(examined.names("fail"), [""; 0], "{plugin}");

        let mut cluster = bed.server.cluster_info();
        cluster["certificate-authority-data"] = STANDARD.encode(&both).into();
        let info = exec_info("v1", Some(cluster));
        bed.node.set_env("KUBERNETES_EXEC_INFO", info);
        bed.node.run().succeeded();
        bed.is_well();
        bed.doctor().says("cluster", "pass", &bed.server.url());
        let stored = stored(&bed)["caPem"].clone();
        assert_eq!(stored.as_str().unwrap().trim(), both.trim(), "{plugin}");
        assert_eq!(bed.server.creates(), creates, "{plugin}");
    }
}

#[test]
fn a_held_lock_is_reported_with_its_holder() {
    let bed = Bed::new();
    let gate = bed.server.hold(Route::create(), Step::Received);
    let holder = bed.node.start(&[]);
    gate.wait(1, PATIENCE);

    let examined = bed.doctor();
    examined.says("lock", "pass", "a run is in progress: process ");
    bed.node.change("lock", |lock| lock["since"] = 0.into());
    let examined = bed.first_failing("lock", "", "wait for that process, or stop it");
    examined.says("lock", "fail", "(kubelet-authenticator-null) since 1970");

    gate.open();
    holder.finish().succeeded();
    bed.is_well();
}

#[test]
fn doctor_reports_a_read_only_or_full_file_system() {
    let mut bed = Bed::joined();
    bed.node.set_env("DIR", bed.node.state());
    for (script, words, cure) in [
        (READ_ONLY, "is read-only", "allow root to write"),
        (FULL, "is full", "free up space"),
    ] {
        bed.node
            .wrap(&["/usr/bin/unshare", "--mount", "/bin/sh", "-c", script, "sh"]);
        let place = bed.node.state();
        let finding = format!("the file system of {} {words}", place.display());
        bed.first_failing("disk", &finding, cure);
    }

    bed.node.wrap(&[]);
    bed.is_well();
}

#[test]
fn checks_that_need_root_are_skipped_without_root() {
    let mut bed = Bed::joined();
    for path in [bed.kubelet_kubeconfig(), bed.bootstrap_kubeconfig()] {
        set_mode(&path, 0o600);
    }
    set_mode(bed.node.scratch().path(), 0o755);
    bed.node
        .wrap(&["/usr/bin/setpriv", "--reuid=65534", "--clear-groups"]);

    let examined = bed.doctor();

    assert_eq!(examined.names("fail"), [""; 0], "{}", examined.run.stdout);
    for name in [
        "kubelet-kubeconfig",
        "state-directory",
        "lock",
        "bootstrap-kubeconfig",
    ] {
        examined.says(name, "skip", "run as root");
    }
    examined.says("machine", "pass", "test:///machine-1");
}

#[test]
fn doctor_reports_a_missing_provider_id() {
    let server = ApiServer::start();
    let node = Node::new(INSECURE, &server);
    let mut bed = Bed::of(INSECURE, server, node);
    bed.node.unset("providerID");
    bed.node.run().failed(3);

    bed.first_failing(
        "machine",
        "the provider ID of this machine is unknown",
        "set providerID",
    );

    bed.node.set("providerID", "test:///machine-1");
    bed.node.command(&["renew"]).succeeded();
    bed.is_well();
    let examined = bed.doctor();
    examined.says("certificate", "pass", "cannot be renewed");
}

/// The content, the mode and the modification time of each file.
fn files(folder: &Path) -> BTreeMap<String, (Vec<u8>, u32, i64, i64)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let (metadata, name) = (entry.metadata().unwrap(), entry.file_name());
            // The time of the last check is the target of a link.
            let target = fs::read_link(entry.path());
            let content = target.map_or_else(
                |_| fs::read(entry.path()).unwrap(),
                |target| target.into_os_string().into_vec(),
            );
            let dates = (metadata.mtime(), metadata.ctime_nsec());
            (
                name.into_string().unwrap(),
                (content, metadata.mode(), dates.0, dates.1),
            )
        })
        .collect()
}

#[test]
fn doctor_does_not_change_any_file() {
    let bed = Bed::joined();
    set_mode(&bed.node.file("kubelet-client.pem"), 0o644);
    let (before, requests) = (files(&bed.node.state()), bed.server.requests().len());

    let examined = bed.doctor();

    examined.says(
        "state-directory",
        "warn",
        "kubelet-client.pem has mode 0644, so other users can read the private key",
    );
    assert_eq!(files(&bed.node.state()), before);
    let made = bed.server.requests().split_off(requests);
    assert!(!made.is_empty());
    for request in made {
        let is_dry_run = request.verb == Verb::Patch && request.query.contains("dryRun=All");
        assert!(is_dry_run || request.verb == Verb::Get, "{request:?}");
    }
}

#[test]
fn doctor_does_not_create_a_missing_store() {
    let bed = Bed::new();

    let examined = bed.first_failing("certificate", "no certificate is stored", " renew");

    examined.says("state-directory", "warn", "this node has not enrolled");
    assert!(!bed.node.state().exists());
    assert_eq!(bed.server.creates(), 0);
}

#[test]
fn a_bootstrap_kubeconfig_that_others_can_read_is_a_warning() {
    let bed = Bed::joined();
    let path = bed.bootstrap_kubeconfig();
    set_mode(&path, 0o644);
    let examined = bed.doctor();
    let words = "has mode 0644, so other users can read its credential";
    examined.says("bootstrap-kubeconfig", "warn", words);

    examined.follow("bootstrap-kubeconfig");
    let accepted = "the API server accepts its credential";
    bed.doctor().says("bootstrap-kubeconfig", "pass", accepted);
}

#[test]
fn the_expiry_of_a_jwt_bootstrap_token_is_shown() {
    let bed = Bed::joined();
    let claims = "eyJleHAiOjQxMDI0NDQ4MDB9";
    bed.server.add_token("e30", &format!("{claims}.sig"));
    let token = format!("e30.{claims}.sig");
    bed.server
        .write_bootstrap_kubeconfig(bed.node.scratch().path(), &token);

    let examined = bed.doctor();

    let words = "the API server accepts its credential, until 2100-01-01T00:00:00Z";
    examined.says("bootstrap-kubeconfig", "pass", words);
    assert!(now() < humantime::parse_rfc3339("2100-01-01T00:00:00Z").unwrap());
    assert_eq!(bed.node.status()["nodeName"], NODE);
}
