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

/// A directory with a kubeconfig, which is valid until a method changes it.
struct Setting {
    folder: TempDir,
    ca: CertificateAuthority,
    contents: Value,
}

impl Setting {
    fn new() -> Self {
        let ca = CertificateAuthority::new("kubernetes");
        let contents = json!({
            "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "here",
            "clusters": [{"name": "c1", "cluster": {
                "server": "https://api.example:6443",
                "certificate-authority-data": STANDARD.encode(ca.certificate_pem()),
            }}],
            "users": [{"name": "u1", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "c1", "user": "u1"}}],
        });
        Self {
            folder: tempfile::tempdir().unwrap(),
            ca,
            contents,
        }
    }

    fn cluster(mut self, field: &str, value: Value) -> Self {
        self.contents["clusters"][0]["cluster"][field] = value;
        self
    }

    fn user(mut self, user: Value) -> Self {
        self.contents["users"][0]["user"] = user;
        self
    }

    fn beside(self, name: &str, contents: &str) -> Self {
        fs::write(self.folder.path().join(name), contents).unwrap();
        self
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    fn read(&self) -> Result<Kubeconfig, KubeconfigError> {
        // JSON is valid YAML.
        fs::write(self.path(), self.contents.to_string()).unwrap();
        Kubeconfig::read(&self.path())
    }

    fn error(&self) -> String {
        let error = self.read().unwrap_err().to_string();
        error.replace(self.folder.path().to_str().unwrap(), "")
    }
}

#[test]
fn the_cluster_and_user_of_the_current_context_are_read() {
    let setting = Setting::new();
    let read = setting.read().unwrap();

    assert_eq!(read.endpoint.server(), "https://api.example:6443");
    assert_eq!(read.endpoint.ca(), [setting.ca.certificate_der()]);
    let Login::Token(token) = read.login else {
        panic!("{:?}", read.login)
    };
    assert_eq!(token.expose(), TOKEN);
}

#[test]
fn a_ca_file_next_to_the_kubeconfig_is_read() {
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
fn client_certificate_files_are_read() {
    let setting = Setting::new();
    let KeyAndCertificate {
        certificate_pem,
        key_pem: key,
    } = setting.ca.issue(&Certificate::client(Subject::node("n1")));
    let setting = setting
        .user(json!({"client-certificate": "c.crt", "client-key": "c.key"}))
        .beside("c.crt", &certificate_pem)
        .beside("c.key", &key);

    let login = setting.read().unwrap().login;

    let Login::ClientCertificate { chain_pem, key_pem } = login else {
        panic!("{login:?}")
    };
    assert_eq!((chain_pem, key_pem.expose()), (certificate_pem, &key));
}

#[test]
fn the_error_names_an_unreadable_file() {
    let setting = Setting::new().user(json!({"tokenFile": "nowhere"}));

    assert_eq!(setting.error(), "cannot read /nowhere");
}

#[test]
fn the_endpoint_and_the_exec_command_are_readable_without_the_user() {
    let setting = Setting::new().user(json!({"exec": {"command": "/bin/true"}}));
    let expected = format!("/kubeconfig: user \"u1\": exec: {}", Refused::Exec);
    assert_eq!(setting.error(), expected);

    let endpoint = Kubeconfig::read_endpoint(&setting.path()).unwrap();
    assert_eq!(endpoint.server(), "https://api.example:6443");
    let command = Kubeconfig::read_exec_command(&setting.path()).unwrap();
    assert_eq!(command.as_deref(), Some("/bin/true"));
}

#[test]
fn the_error_names_a_missing_binary_or_oversized_file() {
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
fn the_cluster_in_the_exec_info_is_checked_in_the_same_way() {
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
        ("proxy-url", json!("ftp://proxy"), Refused::ProxyScheme),
    ] {
        let mut cluster = good.clone();
        cluster[field] = value;
        let error = read(&cluster).unwrap_err();
        let expected = format!("KUBERNETES_EXEC_INFO: spec.cluster: {field}: {why}");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn only_the_exec_command_of_the_current_user_is_changed() {
    let old = "/opt/old/kubelet-authenticator-null";
    let new = "/usr/bin/kubelet-authenticator-null";
    let exec = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "command": old,
        "args": ["--config", old], "env": [{"name": "A", "value": old}],
        "interactiveMode": "Never",
    });
    let mut setting = Setting::new().user(json!({"exec": exec}));
    setting.contents["users"][0]["name"] = "u2".into();
    let own = json!({"name": "u1", "user": {"exec": exec}});
    setting.contents["users"].as_array_mut().unwrap().push(own);
    let text = format!("# {old}\n{}", setting.contents);
    fs::write(setting.path(), text).unwrap();

    let changed = Kubeconfig::with_exec_command(&setting.path(), old, new).unwrap();

    setting.contents["users"][1]["user"]["exec"]["command"] = new.into();
    let expected = format!("# {old}\n{}", setting.contents);
    assert_eq!(changed.map(|text| text.to_string()), Some(expected));
    // The error escapes the command, so the command does not occur literally.
    let escaped = r#"/opt/"old""#;
    setting.contents["users"][1]["user"]["exec"]["command"] = escaped.into();
    fs::write(setting.path(), setting.contents.to_string()).unwrap();
    let changed = Kubeconfig::with_exec_command(&setting.path(), escaped, new).unwrap();
    assert_eq!(changed, None);
}
