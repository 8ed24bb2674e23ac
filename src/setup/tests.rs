//! Parses the files that `setup` writes. `tests/tests/node_setup` runs the whole command.

use std::fs;

use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents, Subject};
use tempfile::TempDir;

use super::*;
use crate::authenticator::allowed::FOR_SETUP;
use crate::kube::kubeconfig::{EndpointFields, Login};
use crate::secret::Secret;
use crate::settings::STATE_DIRECTORY;

/// A token that contains characters that have a special meaning in YAML.
const TOKEN: &str = "abcdef.'\"#{}[]:&*!|>%@`\\";

fn endpoint(ca: &CertificateAuthority) -> EndpointFields {
    EndpointFields {
        server: "https://api.example:6443".to_owned(),
        ca_pem: ca.certificate_pem().to_owned(),
        tls_server_name: None,
        proxy_url: Some("http://user:pa55@proxy.example:3128/".to_owned()),
    }
}

fn written(text: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, text).unwrap();
    (folder, path)
}

#[test]
fn a_bootstrap_kubeconfig_keeps_the_endpoint_and_the_credential() {
    let ca = CertificateAuthority::new("kubernetes");
    let pair = ca.issue(&Contents::client(Subject::node("n1")));
    let certificate = || Login::ClientCertificate {
        chain_pem: pair.certificate_pem.clone(),
        key_pem: Secret::new(pair.key_pem.clone()),
    };
    let token = || Login::Token(Secret::new(TOKEN.to_owned()));
    for login in [token(), certificate()] {
        let given = ClusterEndpoint::from_fields(endpoint(&ca), "a test").unwrap();
        let (_folder, path) = written(&kubeconfig::bootstrap_kubeconfig(&given, &login));

        let read = Kubeconfig::read(&path).unwrap();

        assert_eq!(read.endpoint.to_fields(), endpoint(&ca));
        let is_same = match (&read.login, &login) {
            (Login::Token(read), Login::Token(given)) => read.expose() == given.expose(),
            (
                Login::ClientCertificate { chain_pem, key_pem },
                Login::ClientCertificate {
                    chain_pem: chain,
                    key_pem: key,
                },
            ) => chain_pem == chain && key_pem.expose() == key.expose(),
            _ => false,
        };
        assert!(is_same, "{login:?}");
        assert_eq!(Kubeconfig::read_exec_command(&path).unwrap(), None);
    }
}

#[test]
fn an_exec_kubeconfig_supports_any_program_path() {
    let ca = CertificateAuthority::new("kubernetes");
    let mut fields = endpoint(&ca);
    (fields.tls_server_name, fields.proxy_url) = (Some("kubernetes".to_owned()), None);
    let program = "/opt/a \"b\": #c/kubelet-authenticator-aws";
    let given = ClusterEndpoint::from_fields(fields.clone(), "a test").unwrap();
    let (_folder, path) = written(&exec_kubeconfig(&given, Path::new(program)));

    let command = Kubeconfig::read_exec_command(&path).unwrap();

    assert_eq!(command.as_deref(), Some(program));
    let endpoint = Kubeconfig::read_endpoint(&path).unwrap();
    assert_eq!(endpoint.to_fields(), fields);
}

#[test]
fn a_ca_bundle_longer_than_an_environment_variable_is_refused() {
    let ca = CertificateAuthority::new("kubernetes");
    let bundle = |length: usize| {
        let mut fields = endpoint(&ca);
        fields.ca_pem = fields.ca_pem.repeat(length / fields.ca_pem.len());
        let endpoint = ClusterEndpoint::from_fields(fields, "a test").unwrap();
        check_length(&endpoint, Path::new("/etc/kubernetes/kubelet.conf"))
    };

    assert_eq!(bundle(90 * 1024), Ok(()));
    let error = bundle(98 * 1024).unwrap_err();
    assert_eq!(error.code(), Code::Configuration);
    for words in ["/etc/kubernetes/kubelet.conf", "131072"] {
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn the_drop_in_runs_setup_after_the_boot_phases_and_the_mounts() {
    let state = Path::new("/data/store");
    let text = drop_in(Path::new("/usr/bin/kubelet-authenticator-aws"), state);

    let phases = "systemd-pcrosseparator.service systemd-pcrnvdone.service \
                  systemd-pcrphase-sysinit.service systemd-pcrphase.service";
    let unit = format!(
        "[Unit]
After={phases}
RequiresMountsFor=/etc/kubernetes /var/lib/kubelet /data/store

"
    );
    let service = "[Service]
TimeoutStartSec=90
ExecStartPre=-/usr/bin/kubelet-authenticator-aws setup
EnvironmentFile=-/etc/kubernetes/kubelet-authenticator/kubelet.env
";
    assert_eq!(text, unit + service);
}

#[test]
fn systemd_gives_setup_more_time_than_it_needs() {
    let text = drop_in(Path::new("/usr/bin/plugin"), Path::new("/data/store"));
    let limits = text.lines();
    let mut limits = limits.filter_map(|line| line.strip_prefix("TimeoutStartSec="));
    let limit: u64 = limits.next().unwrap().parse().unwrap();

    let needed = copy::TRYING + FOR_SETUP + 2 * WAIT_FOR_OTHERS;
    assert!(Duration::from_secs(limit) > needed, "{limit}");
    assert_eq!(limits.next(), None);
}

#[test]
fn a_path_with_special_characters_is_not_used_unquoted() {
    for (path, expected) in [
        ("/usr/bin/kubelet-authenticator-aws", true),
        ("/opt/a.b_c+d@e:f/g", true),
        ("bin/kubelet-authenticator-aws", false),
        ("", false),
        ("/opt/a b", false),
        ("/opt/a\nb", false),
        ("/opt/%n", false),
        ("/opt/$HOME", false),
        ("/opt/\"a\"", false),
        ("/opt/a;b", false),
        ("/opt/\\x20", false),
        ("/opt/\u{e4}", false),
    ] {
        assert_eq!(is_plain(Path::new(path)), expected, "{path}");
    }
}

#[test]
fn the_page_of_node_changes_shows_the_drop_in_and_the_flags() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/node-changes.md");
    let page = fs::read_to_string(page).unwrap();
    let blocks = page.split("```ini\n").skip(1);
    let blocks: Vec<&str> = blocks
        .map(|rest| rest.split("```").next().unwrap())
        .collect();

    let program = Path::new("/usr/bin/kubelet-authenticator-aws");
    let drop_in = drop_in(program, Path::new(STATE_DIRECTORY));
    let environment = systemd::environment(Path::new(KUBELET_KUBECONFIG));
    // The page does not show the comment.
    let (_, flags) = environment.split_once('\n').unwrap();
    assert_eq!(blocks, [drop_in.as_str(), flags]);
}
