mod refusals;

use std::fs;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::pki::{
    CertificateAuthority, Contents as Certificate, KeyAndCertificate, Subject,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const TOKEN: &str = "abcdef.0123456789abcdef";

/// A folder with a kubeconfig, which is valid until a method changes it.
struct Setting {
    folder: TempDir,
    ca: CertificateAuthority,
    pair: KeyAndCertificate,
    contents: Value,
}

impl Setting {
    fn new() -> Self {
        let ca = CertificateAuthority::new("kubernetes");
        let pair = ca.issue(&Certificate::client(Subject::node("n1")));
        let contents = json!({
            "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "here",
            "clusters": [
                {"name": "c0", "cluster": {"server": "http://elsewhere"}},
                {"name": "c1", "cluster": {
                    "server": "https://api.example:6443",
                    "certificate-authority-data": STANDARD.encode(ca.certificate_pem()),
                }},
            ],
            "users": [{"name": "u1", "user": {"token": TOKEN}}],
            "contexts": [
                {"name": "there", "context": {"cluster": "c0", "user": "u0"}},
                {"name": "here", "context": {"cluster": "c1", "user": "u1", "namespace": "default"}},
            ],
        });
        Self {
            folder: tempfile::tempdir().unwrap(),
            ca,
            pair,
            contents,
        }
    }

    fn set(mut self, pointer: &str, value: Value) -> Self {
        *self.contents.pointer_mut(pointer).unwrap() = value;
        self
    }

    fn cluster(mut self, field: &str, value: Value) -> Self {
        self.contents["clusters"][1]["cluster"][field] = value;
        self
    }

    fn user(self, user: Value) -> Self {
        self.set("/users/0/user", user)
    }

    fn beside(self, name: &str, contents: &str) -> Self {
        fs::write(self.folder.path().join(name), contents).unwrap();
        self
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn read(&self) -> Result<Kubeconfig, KubeconfigError> {
        // JSON is YAML.
        fs::write(self.path(), self.contents.to_string()).unwrap();
        Kubeconfig::read(&self.path())
    }

    fn pair_in_base64(&self) -> (String, String) {
        (
            STANDARD.encode(&self.pair.certificate_pem),
            STANDARD.encode(&self.pair.key_pem),
        )
    }

    fn token(&self) -> String {
        match self.read().unwrap().login {
            Login::Token(token) => token.expose().clone(),
            Login::ClientCertificate { .. } => panic!("a client certificate"),
        }
    }

    fn is_certificate(&self) -> bool {
        match self.read().unwrap().login {
            Login::Token(_) => false,
            Login::ClientCertificate { chain_pem, key_pem } => {
                chain_pem == self.pair.certificate_pem && *key_pem.expose() == self.pair.key_pem
            }
        }
    }

    /// The place and the reason of a refusal. The error must not contain a secret.
    fn refused(&self) -> (String, Refused) {
        let error = self.read().unwrap_err();
        let words = format!("{error} {error:?}");
        assert!(!words.contains("0123456789abcdef"), "{words}");
        let KubeconfigError::Invalid(InvalidKubeconfig { place, why }) = error else {
            panic!("{error:?}")
        };
        let (file, rest) = place.split_once(": ").unwrap();
        assert_eq!(file, self.path().to_str().unwrap());
        (rest.to_owned(), why)
    }

    fn error(&self) -> String {
        let error = self.read().unwrap_err().to_string();
        error.replace(self.folder.path().to_str().unwrap(), "")
    }
}

#[test]
fn the_current_contexts_cluster_and_user_are_read() {
    let setting = Setting::new();
    let read = setting.read().unwrap();

    assert_eq!(read.endpoint.server(), "https://api.example:6443");
    assert_eq!(read.endpoint.ca(), [setting.ca.certificate_der()]);
    assert_eq!(read.endpoint.tls_server_name(), None);
    assert!(read.endpoint.proxy().is_none());
    assert_eq!(setting.token(), TOKEN);
}

#[test]
fn an_endpoint_can_be_kept() {
    let read = Setting::new()
        .cluster("tls-server-name", "kubernetes".into())
        .read()
        .unwrap();
    let kept = serde_json::to_string(&read.endpoint.to_fields()).unwrap();
    let again =
        ClusterEndpoint::from_fields(serde_json::from_str(&kept).unwrap(), "the store").unwrap();

    assert_eq!(again.to_fields(), read.endpoint.to_fields());
    assert_eq!(again.ca(), read.endpoint.ca());
    assert_eq!(again.audience(), read.endpoint.audience());
}

#[test]
fn the_ca_may_be_in_a_file_beside_the_kubeconfig() {
    let setting = Setting::new().cluster("certificate-authority-data", Value::Null);
    let pem = setting.ca.certificate_pem().to_owned();
    let mut setting = setting.beside("ca.crt", &pem);

    for file in [
        "ca.crt".to_owned(),
        setting.folder.path().join("ca.crt").display().to_string(),
    ] {
        setting = setting.cluster("certificate-authority", file.into());
        assert_eq!(
            setting.read().unwrap().endpoint.ca(),
            [setting.ca.certificate_der()]
        );
    }
}

#[test]
fn data_wins_over_a_file() {
    let setting = Setting::new().cluster("certificate-authority", "nowhere.crt".into());
    assert!(setting.read().is_ok());

    let setting = Setting::new();
    let (certificate, key) = setting.pair_in_base64();
    let setting = setting.user(json!({
        "client-certificate-data": certificate, "client-key-data": key,
        "client-certificate": "nowhere.crt", "client-key": "nowhere.key",
    }));
    assert!(setting.is_certificate());
}

#[test]
fn a_token_may_be_in_a_file() {
    let setting = Setting::new()
        .user(json!({"tokenFile": "token"}))
        .beside("token", &format!("{TOKEN}\n"));

    assert_eq!(setting.token(), TOKEN);
}

#[test]
fn the_tokens_file_wins_over_the_token_unless_it_cannot_be_read() {
    let setting = Setting::new()
        .user(json!({"token": "other", "tokenFile": "token"}))
        .beside("token", TOKEN);
    assert_eq!(setting.token(), TOKEN);

    let setting = Setting::new().user(json!({"token": TOKEN, "tokenFile": "nowhere"}));
    assert_eq!(setting.token(), TOKEN);

    let setting = Setting::new().user(json!({"tokenFile": "nowhere"}));
    assert_eq!(setting.error(), "cannot read /nowhere");
}

#[test]
fn a_client_certificate_may_be_in_files() {
    let setting =
        Setting::new().user(json!({"client-certificate": "c.crt", "client-key": "c.key"}));
    let (certificate, key) = (
        setting.pair.certificate_pem.clone(),
        setting.pair.key_pem.clone(),
    );

    assert!(
        setting
            .beside("c.crt", &certificate)
            .beside("c.key", &key)
            .is_certificate()
    );
}

#[test]
fn a_client_certificate_wins_over_a_token() {
    let setting = Setting::new();
    let (certificate, key) = setting.pair_in_base64();
    let setting = setting.user(json!({
        "token": TOKEN, "client-certificate-data": certificate, "client-key-data": key,
    }));

    assert!(setting.is_certificate());
}

#[test]
fn name_and_proxy_are_read() {
    let read = Setting::new()
        .cluster("tls-server-name", "kubernetes".into())
        .read()
        .unwrap();
    assert_eq!(read.endpoint.tls_server_name(), Some("kubernetes"));

    for url in ["http://proxy:3128", "https://user:0123456789abcdef@proxy"] {
        let read = Setting::new()
            .cluster("proxy-url", url.into())
            .read()
            .unwrap();
        assert_eq!(read.endpoint.proxy().unwrap().expose(), url);
        assert!(!format!("{read:?}").contains("0123456789abcdef"));
    }
}

#[test]
fn contexts_have_to_lead_somewhere() {
    for (pointer, value, expected) in [
        (
            "/current-context",
            Value::Null,
            "current-context: it is missing",
        ),
        (
            "/current-context",
            "".into(),
            "current-context: it is missing",
        ),
        (
            "/current-context",
            "x".into(),
            "context \"x\": it is missing",
        ),
        ("/contexts", Value::Null, "context \"here\": it is missing"),
        (
            "/contexts/1/context/cluster",
            "x".into(),
            "cluster \"x\": it is missing",
        ),
        (
            "/contexts/1/context/user",
            "x".into(),
            "user \"x\": it is missing",
        ),
        (
            "/contexts/0/name",
            "here".into(),
            "context \"here\": two have the same name",
        ),
        (
            "/clusters/0/name",
            "c1".into(),
            "cluster \"c1\": two have the same name",
        ),
    ] {
        assert_eq!(
            Setting::new().set(pointer, value).error(),
            format!("/kubeconfig: {expected}")
        );
    }
}

#[test]
fn the_endpoint_can_be_read_without_its_user() {
    let setting = Setting::new().user(json!({"exec": {"command": "/bin/true"}}));
    assert_eq!(setting.refused().1, Refused::Exec);

    let endpoint = Kubeconfig::read_endpoint(&setting.path()).unwrap();
    assert_eq!(endpoint.server(), "https://api.example:6443");
}

#[test]
fn what_is_no_kubeconfig_is_named_with_line_and_field_and_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    for (contents, field) in [
        (
            format!("users:\n- name: u1\n  user:\n    token: [{TOKEN}]\n"),
            "users[0].user.token",
        ),
        (
            format!("users:\n- name: u1\n  user: {TOKEN}\n"),
            "users[0].user",
        ),
        (format!("- {TOKEN}\n"), "."),
        (format!("users: \"{TOKEN}\n"), "."),
    ] {
        fs::write(&path, &contents).unwrap();
        let error = Kubeconfig::read(&path).unwrap_err();
        let words = format!("{error} {error:?}");
        assert!(!words.contains("0123456789abcdef"), "{words}");
        let KubeconfigError::Invalid(InvalidKubeconfig { place, why }) = error else {
            panic!("{contents}: {error:?}")
        };
        assert_eq!(why, Refused::Syntax);
        assert!(place.contains(": line "), "{place}");
        assert!(place.ends_with(&format!(": {field}")), "{place}");
    }
}

#[test]
fn a_file_that_is_missing_binary_or_huge_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    let read = || Kubeconfig::read(&path).unwrap_err();

    assert!(matches!(read(), KubeconfigError::Unreadable { .. }));
    fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert!(matches!(read(), KubeconfigError::Unreadable { .. }));
    fs::write(&path, vec![b'#'; 10 << 20]).unwrap();
    assert!(matches!(
        read(),
        KubeconfigError::Invalid(InvalidKubeconfig {
            why: Refused::TooLong(1_048_576),
            ..
        })
    ));
}

#[test]
fn the_exec_infos_cluster_is_checked_alike() {
    let ca = CertificateAuthority::new("kubernetes");
    let good = json!({
        "server": "https://api.example:6443",
        "certificate-authority-data": STANDARD.encode(ca.certificate_pem()),
    });
    let read = |cluster: &Value| {
        let text = cluster.to_string();
        serde_json::from_str::<ExecCluster<'_>>(&text)
            .unwrap()
            .endpoint()
    };
    assert_eq!(read(&good).unwrap().ca(), [ca.certificate_der()]);

    for (field, value, why) in [
        (
            "insecure-skip-tls-verify",
            json!(true),
            Refused::SkipsVerification,
        ),
        ("certificate-authority-data", Value::Null, Refused::NoCa),
        ("certificate-authority-data", json!("?"), Refused::NotBase64),
        ("server", json!(""), Refused::Missing),
        ("server", json!("http://api.example"), Refused::NotHttps),
        ("proxy-url", json!("socks5://proxy"), Refused::ProxyScheme),
    ] {
        let mut cluster = good.clone();
        cluster[field] = value;
        let error = read(&cluster).unwrap_err();
        let expected = format!("KUBERNETES_EXEC_INFO: spec.cluster: {field}: {why}");
        assert_eq!(error.to_string(), expected);
    }
}
