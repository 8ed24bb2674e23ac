//! Targets for the parsers in the node library: client-go's exec info, kubeconfigs, settings, and the kubelet's
//! arguments.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::LazyLock;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::Provider;
use kubelet_authenticator::attester::KubeletArguments;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::settings::{Entry, ProviderSchema, Settings, Sources};
use kubelet_authenticator::testing::{
    ClusterEndpoint, ExecCluster, ExecInfo, InvalidKubeconfig, Kubeconfig, KubeconfigError, Login,
    Refused,
};
use kubelet_authenticator_test_support::pki::{CertificateAuthority, Contents, Subject};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{Outcome, SECRET, assert_keeps_secret};

/// A length that exceeds the length of any error about exec info. Errors truncate the texts from client-go.
const MAX_ERROR_LEN: usize = 2 * 1024;

/// Parses client-go's exec info. An error does not contain cluster data.
pub fn exec_info(input: &[u8]) -> Outcome {
    let info = match ExecInfo::parse(OsStr::from_bytes(input)) {
        Ok(info) => info,
        Err(error) => {
            let text = error_chain(&error);
            assert!(text.len() <= MAX_ERROR_LEN, "{text}");
            // These two errors quote the invalid field.
            if !text.contains("field kind is") && !text.contains("field apiVersion is") {
                assert_keeps_secret(&text);
            }
            return Outcome::Refused;
        }
    };
    let Some(cluster) = &info.cluster else {
        return Outcome::Accepted;
    };
    match cluster.endpoint() {
        Ok(endpoint) => {
            assert_endpoint(&endpoint);
            Outcome::Accepted
        }
        Err(error) => {
            assert_keeps_secret(&error_chain(&error));
            Outcome::Refused
        }
    }
}

/// Exec info with and without a cluster.
pub fn exec_info_seeds() -> Vec<Vec<u8>> {
    let ca = CertificateAuthority::new("kubernetes");
    let question = |version: &str, spec: Value| {
        let version = format!("client.authentication.k8s.io/{version}");
        json!({"kind": "ExecCredential", "apiVersion": version, "spec": spec})
    };
    let cluster = json!({
        "server": "https://10.0.0.1:6443", "tls-server-name": "api.example",
        "certificate-authority-data": BASE64_STANDARD.encode(ca.certificate_pem()),
        "config": {"token": SECRET},
    });
    let behind_proxy = json!({
        "server": "https://api.example/prefix/",
        "certificate-authority-data": BASE64_STANDARD.encode(ca.certificate_pem()),
        "proxy-url": format!("http://user:{SECRET}@proxy:3128"), "config": null,
    });
    let questions = [
        question("v1", json!({"interactive": false})),
        question("v1beta1", json!({"cluster": cluster})),
        question("v1", json!({"cluster": behind_proxy})),
    ];
    questions
        .map(|question| question.to_string().into_bytes())
        .into()
}

/// Asserts the guarantees of an endpoint: it can be stored, and written in client-go's format.
fn assert_endpoint(endpoint: &ClusterEndpoint) {
    assert!(endpoint.server().starts_with("https://"));
    assert!(!endpoint.ca().is_empty());
    let fields = endpoint.to_fields();
    let kept = ClusterEndpoint::from_fields(fields.clone(), "kept").unwrap();
    let told = ExecCluster {
        server: (&fields.server).into(),
        tls_server_name: fields.tls_server_name.as_deref().map(Into::into),
        insecure_skip_tls_verify: false,
        certificate_authority_data: Some(BASE64_STANDARD.encode(&fields.ca_pem).into()),
        proxy_url: fields.proxy_url.as_deref().map(Into::into),
        config: None,
    };
    let told = told.endpoint().unwrap();
    for again in [kept, told] {
        assert_eq!(again.to_fields(), fields);
        assert_eq!(again.audience(), endpoint.audience());
        assert!(again.is_of_same_cluster(endpoint));
    }
}

/// The directory that contains the kubeconfigs to read.
static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().unwrap());

/// Parses a kubeconfig. Errors do not contain credentials.
pub fn kubeconfig(input: &[u8]) -> Outcome {
    // Skip paths to files that never end, or that a parser must not read.
    if ["/dev", "/proc", "/sys"]
        .iter()
        .any(|folder| names(input, folder))
    {
        return Outcome::Refused;
    }
    let path = FOLDER.path().join("kubeconfig");
    fs::write(&path, input).unwrap();
    assert_parts(&path);
    match Kubeconfig::read(&path) {
        Ok(Kubeconfig {
            endpoint, login, ..
        }) => {
            assert_endpoint(&endpoint);
            if let Login::Token(token) = &login {
                assert!(!token.expose().is_empty());
                assert!(token.expose().bytes().all(|byte| byte.is_ascii_graphic()));
                assert_keeps_secret(&format!("{login:?}"));
            }
            let alone = Kubeconfig::read_endpoint(&path).unwrap();
            assert_eq!(alone.to_fields(), endpoint.to_fields());
            assert_eq!(Kubeconfig::read_exec_command(&path).unwrap(), None);
            Outcome::Accepted
        }
        Err(error) => {
            assert_no_credential(&error);
            Outcome::Refused
        }
    }
}

fn names(input: &[u8], folder: &str) -> bool {
    let folder = folder.as_bytes();
    input.windows(folder.len()).any(|window| window == folder)
}

fn assert_parts(path: &Path) {
    let endpoint = Kubeconfig::read_endpoint(path);
    let command = Kubeconfig::read_exec_command(path);
    for error in [endpoint.err(), command.err()].iter().flatten() {
        assert_no_credential(error);
    }
}

/// Asserts that an error does not contain a credential; names and paths in it are not credentials.
fn assert_no_credential(error: &KubeconfigError) {
    if let KubeconfigError::Invalid(InvalidKubeconfig { place, why }) = error {
        assert_keeps_secret(&why.to_string());
        if *why == Refused::Syntax {
            assert_keeps_secret(place);
        }
    }
}

/// Kubeconfigs with a token, a client certificate, and other fields that tools write.
pub fn kubeconfig_seeds() -> Vec<Vec<u8>> {
    let ca = CertificateAuthority::new("kubernetes");
    let pair = ca.issue(&Contents::client(Subject::node("n1")));
    let ca = BASE64_STANDARD.encode(ca.certificate_pem());
    let users = [
        format!("token: {SECRET}"),
        format!("token: >-\n      {SECRET}"),
        format!(
            "{{client-certificate-data: {}, client-key-data: {}}}",
            BASE64_STANDARD.encode(&pair.certificate_pem),
            BASE64_STANDARD.encode(&pair.key_pem),
        ),
    ];
    let kubeconfig = |user: String| {
        format!(
            "apiVersion: v1\nkind: Config\npreferences: {{}}\ncurrent-context: here\nclusters:\n\
             - name: c\n  cluster:\n    server: https://api.example:6443\n    \
             certificate-authority-data: {ca}\nusers:\n- name: u\n  user:\n    {user}\ncontexts:\n\
             - context: {{cluster: c, user: u, namespace: default}}\n  name: here\n"
        )
    };
    users.map(|user| kubeconfig(user).into_bytes()).into()
}

const SETTINGS_HEADER: &str = "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
                               kind: KubeletAuthenticatorConfiguration\n";

fn settings_schema() -> ProviderSchema {
    ProviderSchema {
        provider: Provider::AWS,
        settings: &[],
        expiration_seconds: 86_400,
    }
}

type Flags = Vec<(Entry, OsString)>;

/// Asserts the properties of all settings, with and without an additional option.
fn assert_settings(settings: &Settings, again: impl Fn(Flags) -> Settings) {
    assert!(settings.state_directory.is_absolute());
    assert!(settings.bootstrap_kubeconfig.is_absolute());
    assert!(settings.expiration_seconds >= 600);

    let same = again(Flags::new());
    assert_eq!(same.digest("n"), settings.digest("n"));
    assert_eq!(&same, settings);

    let node_name = settings_schema().entries().next().unwrap();
    let stronger = again(vec![(node_name, "stronger".into())]);
    assert_eq!(stronger.node_name.as_ref().unwrap().as_str(), "stronger");
    if stronger.node_name != settings.node_name {
        assert_ne!(stronger.digest("n"), settings.digest("n"));
    }
}

/// Parses the settings file, and asserts the properties of the settings.
pub fn settings_file(input: &[u8]) -> Outcome {
    let path = FOLDER.path().join("settings.yaml");
    fs::write(&path, input).unwrap();
    let load = |flags| {
        let sources = Sources {
            config: Some(&path),
            flags,
            ..Sources::default()
        };
        Settings::load(sources, &settings_schema())
    };
    assert_loaded(load)
}

fn assert_loaded(load: impl Fn(Flags) -> Result<Settings, Failure>) -> Outcome {
    match load(Flags::new()) {
        Ok(settings) => {
            assert_settings(&settings, |flags| load(flags).unwrap());
            Outcome::Accepted
        }
        Err(error) => {
            assert_eq!(
                error.code(),
                Code::Configuration,
                "no flag was given: {error}"
            );
            assert!(!error.what().is_empty());
            Outcome::Refused
        }
    }
}

/// Files with general settings and with a section of another provider.
pub fn settings_file_seeds() -> Vec<Vec<u8>> {
    let files = [
        "nodeName: n1\nproviderID: aws:///a/i-1\nexpirationSeconds: 86400\n",
        "stateDirectory: /var/lib/a\nbootstrapKubeconfig: \"/etc/b\"\n",
        "audience: c\ntpm: {ekCertificate: /etc/ek.pem}\n",
    ];
    let files = files.map(|settings| format!("{SETTINGS_HEADER}{settings}"));
    files.map(String::into_bytes).into()
}

/// Parses the kubelet's arguments. Each value occurs in the input, and the last value of a repeated flag is used.
pub fn kubelet_arguments(input: &[u8]) -> Outcome {
    let text = String::from_utf8_lossy(input);
    let of_process = KubeletArguments::from_cmdline(input);
    let of_kubeadm = KubeletArguments::from_environment_file(&text);
    let named = |found: &KubeletArguments| {
        let found = [found.hostname_override(), found.provider_id()];
        found
            .map(|value| value.map(str::to_owned))
            .into_iter()
            .flatten()
    };
    for value in of_process.iter().flat_map(named) {
        assert!(!value.is_empty() && text.contains(&value), "{value:?}");
    }
    // The value does not contain quotes from the file.
    for value in named(&of_kubeadm) {
        assert!(!value.is_empty() && value.len() <= text.len(), "{value:?}");
    }
    if of_process.is_some() {
        // The first occurrence of the flag can be the value of another flag at the end of the input.
        let last = b"\0--provider-id=a:///last".repeat(2);
        let longer = KubeletArguments::from_cmdline(&[input, &last].concat()).unwrap();
        assert_eq!(longer.provider_id(), Some("a:///last"));
    }
    let mut found = of_process.iter().chain([&of_kubeadm]).flat_map(named);
    Outcome::of(found.next().is_some())
}

/// Kubelet command lines, and kubeadm's file with kubelet flags.
pub fn kubelet_arguments_seeds() -> Vec<Vec<u8>> {
    vec![
        b"/usr/bin/kubelet\0--hostname-override=n1\0--v=2\0--provider-id\0aws:///a/i-1\0".to_vec(),
        b"kubelet\0--provider-id=aws:///a/i-0\0--provider-id=aws:///a/i-1\0".to_vec(),
        b"KUBELET_KUBEADM_ARGS=\"--hostname-override=n1 --provider-id=aws:///a/i-1\"\n".to_vec(),
    ]
}
