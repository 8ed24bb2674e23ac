use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;

use tempfile::TempDir;

use super::*;

mod digest;
mod tpm;

const HEADER: &str = "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
                      kind: KubeletAuthenticatorConfiguration\n";

/// A folder with settings in it, and an environment.
struct World {
    folder: TempDir,
    variables: BTreeMap<&'static str, OsString>,
}

impl World {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            variables: BTreeMap::new(),
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("config.yaml")
    }

    fn file(self, contents: &str) -> Self {
        fs::write(self.path(), format!("{HEADER}{contents}")).unwrap();
        self
    }

    fn drop_in(self, name: &str, contents: &str) -> Self {
        let folder = self.folder.path().join("config.d");
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(name), format!("{HEADER}{contents}")).unwrap();
        self
    }

    fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.insert(name, value.into());
        self
    }

    fn load(&self, given: Given<'_>) -> Result<Settings, SettingsError> {
        let path = self.path();
        let given = Given {
            config: Some(&path),
            ..given
        };
        Settings::load(given, &|name| self.variables.get(name).cloned(), defaults())
    }

    fn settings(&self) -> Settings {
        self.load(Given::default()).unwrap()
    }

    fn error(&self) -> String {
        let error = self.load(Given::default()).unwrap_err().to_string();
        error.replace(self.folder.path().to_str().unwrap(), "")
    }
}

fn defaults() -> ProviderDefaults {
    let signer_name = "cluster.x-k8s.io/kube-apiserver-client-kubelet-null".to_owned();
    ProviderDefaults {
        signer_name,
        expiration_seconds: 604_800,
    }
}

fn flags(key: Key, value: &str) -> Layer {
    Layer::from_flags([(key, OsStr::new(value))]).unwrap()
}

fn node_name(settings: &Settings) -> &str {
    settings.node_name.as_ref().unwrap().as_str()
}

#[test]
fn no_file_is_needed() {
    let settings = Settings::load(Given::default(), &|_| None, defaults()).unwrap();

    assert_eq!(
        settings,
        Settings {
            node_name: None,
            provider_id: None,
            bootstrap_kubeconfig: "/etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig"
                .into(),
            kubeconfig: None,
            state_directory: "/var/lib/kubelet-authenticator".into(),
            audience: None,
            signer_name: "cluster.x-k8s.io/kube-apiserver-client-kubelet-null".to_owned(),
            expiration_seconds: 604_800,
            timeout: Duration::from_mins(1),
            aws: AwsSettings::default(),
            tpm: tpm::defaults(),
        }
    );
}

#[test]
fn every_key_can_be_set_in_a_file() {
    let settings = World::new()
        .file(
            "nodeName: n1\nproviderID: aws:///a/i-1\nbootstrapKubeconfig: /b\nkubeconfig: /k\n\
             stateDirectory: /s\naudience: one\nsignerName: example.com/s\nexpirationSeconds: 3600\n\
             timeoutSeconds: 30\naws:\n  principal: instanceProfile\n  nodeName: instanceID\n  \
             stsEndpoint: sts.test\n  metadataEndpoint: http://127.0.0.1:1\n",
        )
        .settings();

    assert_eq!(node_name(&settings), "n1");
    assert_eq!(settings.provider_id.unwrap().as_str(), "aws:///a/i-1");
    assert_eq!(settings.bootstrap_kubeconfig, Path::new("/b"));
    assert_eq!(settings.kubeconfig.as_deref(), Some(Path::new("/k")));
    assert_eq!(settings.state_directory, Path::new("/s"));
    assert_eq!(settings.audience.unwrap().as_str(), "one");
    assert_eq!(settings.signer_name, "example.com/s");
    assert_eq!(settings.expiration_seconds, 3600);
    assert_eq!(settings.timeout, Duration::from_secs(30));
    assert_eq!(settings.aws.principal, AwsPrincipal::InstanceProfile);
    assert_eq!(settings.aws.node_name, AwsNodeName::InstanceId);
    assert_eq!(settings.aws.sts_endpoint.unwrap().host(), "sts.test");
    assert_eq!(
        settings.aws.metadata_endpoint.unwrap().to_string(),
        "http://127.0.0.1:1"
    );
}

#[test]
fn every_key_has_a_flag_and_a_variable() {
    let values = [
        (Key::NodeName, "n1"),
        (Key::ProviderId, "aws:///a/i-1"),
        (Key::BootstrapKubeconfig, "/b"),
        (Key::Kubeconfig, "/k"),
        (Key::StateDirectory, "/s"),
        (Key::Audience, "one"),
        (Key::SignerName, "example.com/s"),
        (Key::ExpirationSeconds, "3600"),
        (Key::TimeoutSeconds, "30"),
        (Key::AwsPrincipal, "instanceProfile"),
        (Key::AwsNodeName, "localHostname"),
        (Key::AwsStsEndpoint, "sts.test"),
        (Key::AwsMetadataEndpoint, "http://127.0.0.1:1"),
        (Key::TpmDevice, "/dev/tpmrm1"),
        (Key::TpmTcti, "swtpm:host=127.0.0.1,port=2321"),
        (Key::TpmEndorsementKey, "rsa-2048"),
        (Key::TpmPcrs, "0,4,7"),
        (Key::TpmDeviceProgram, "/p"),
    ];
    assert_eq!(values.map(|(key, _)| key), Key::ALL);

    let by_flag = Layer::from_flags(values.map(|(key, value)| (key, OsStr::new(value)))).unwrap();
    let by_variable = Layer::from_environment(&|name| {
        let (_, value) = values.iter().find(|(key, _)| key.variable() == name)?;
        Some(value.into())
    });
    assert_eq!(by_flag, by_variable.unwrap());
    assert_ne!(by_flag, Layer::default());
}

#[test]
fn the_nearer_source_wins() {
    let extension = Some(r#"{"nodeName":"extension"}"#);
    let mut world = World::new();
    let found = |world: &World, layer| {
        let given = Given {
            extension,
            flags: layer,
            ..Given::default()
        };
        node_name(&world.load(given).unwrap()).to_owned()
    };

    world = world.file("");
    assert_eq!(found(&world, Layer::default()), "extension");
    world = world.file("nodeName: file");
    assert_eq!(found(&world, Layer::default()), "file");
    world = world.drop_in("10-a.yaml", "nodeName: drop-in-a");
    assert_eq!(found(&world, Layer::default()), "drop-in-a");
    world = world.drop_in("20-b.yaml", "nodeName: drop-in-b");
    assert_eq!(found(&world, Layer::default()), "drop-in-b");
    world = world.variable("KUBELET_AUTHENTICATOR_NODE_NAME", "variable");
    assert_eq!(found(&world, Layer::default()), "variable");
    assert_eq!(found(&world, flags(Key::NodeName, "flag")), "flag");
}

#[test]
fn sources_add_up() {
    let settings = World::new()
        .file("nodeName: n1\naudience: file\naws: {nodeName: instanceID, principal: instanceProfile}\n")
        .drop_in("a.yaml", "audience: drop-in\naws: {nodeName: localHostname}\n")
        .variable("KUBELET_AUTHENTICATOR_TIMEOUT_SECONDS", "5")
        .settings();

    assert_eq!(node_name(&settings), "n1");
    assert_eq!(settings.audience.unwrap().as_str(), "drop-in");
    assert_eq!(settings.timeout, Duration::from_secs(5));
    assert_eq!(settings.aws.node_name, AwsNodeName::LocalHostname);
    assert_eq!(settings.aws.principal, AwsPrincipal::InstanceProfile);
}

#[test]
fn an_empty_text_says_nothing() {
    let settings = World::new()
        .file("nodeName: \"\"\nproviderID:\nsignerName: \"\"\naws:\n")
        .drop_in("a.yaml", "aws: {principal: \"\", stsEndpoint:}")
        .variable("KUBELET_AUTHENTICATOR_STATE_DIRECTORY", "")
        .settings();

    assert_eq!(
        settings,
        Settings::load(Given::default(), &|_| None, defaults()).unwrap()
    );
}

#[test]
fn other_files_beside_the_drop_ins_are_not_read() {
    let settings = World::new()
        .file("")
        .drop_in(".hidden.yaml", "nodeName: n1")
        .drop_in("README", "nodeName: n1")
        .settings();

    assert_eq!(settings.node_name, None);
}

#[test]
fn drop_ins_count_without_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let default = folder.path().join("config.yaml");
    fs::create_dir(folder.path().join("config.d")).unwrap();
    fs::write(
        folder.path().join("config.d/a.yaml"),
        format!("{HEADER}nodeName: n1"),
    )
    .unwrap();

    let layer = file::read(None, &default).unwrap();
    assert_eq!(layer.node_name.unwrap().as_str(), "n1");
}

#[test]
fn a_file_that_is_named_has_to_be_there() {
    let error = World::new().load(Given::default()).unwrap_err();
    assert!(
        matches!(error, SettingsError::Unreadable { .. }),
        "{error:?}"
    );

    let environment = |name: &str| (name == CONFIG_VARIABLE).then(|| "/nowhere/config.yaml".into());
    let error = Settings::load(Given::default(), &environment, defaults()).unwrap_err();
    assert_eq!(error.to_string(), "cannot read /nowhere/config.yaml");
}

#[test]
fn the_flag_names_the_file_before_the_variable_does() {
    let world = World::new()
        .file("nodeName: n1")
        .variable(CONFIG_VARIABLE, "/nowhere/config.yaml");

    assert_eq!(node_name(&world.settings()), "n1");
}

#[test]
fn a_key_that_is_not_known_is_named_with_file_and_line() {
    let error = World::new().file("nodeNam: n1").error();
    let wanted =
        "/config.yaml: line 3: key nodeNam: there is no such key; the keys are apiVersion,";
    assert!(error.starts_with(wanted), "{error}");

    let error = World::new()
        .file("")
        .drop_in("a.yaml", "aws: {principle: x}")
        .error();
    let wanted = "/config.d/a.yaml: line 3: key aws.principle: there is no such key; \
                  the keys are principal, nodeName, stsEndpoint, metadataEndpoint";
    assert_eq!(error, wanted);
}

#[test]
fn a_key_that_is_there_twice_is_refused() {
    let error = World::new().file("nodeName: n1\nnodeName: n2\n").error();

    assert_eq!(
        error,
        "/config.yaml: line 4: key nodeName: the key is there twice"
    );
}

#[test]
fn broken_yaml_is_named_with_file_and_line() {
    for contents in ["- a\n", "nodeName: \"n1\n\n", "}\n"] {
        let error = World::new().file(contents).error();
        assert!(
            error.starts_with("/config.yaml: line "),
            "{contents:?}: {error}"
        );
    }
    let world = World::new();
    fs::write(world.path(), b"apiVersion: a\nkind: \xff").unwrap();
    assert_eq!(
        world.error(),
        "/config.yaml: line 2, column 7: not YAML: it is not UTF-8"
    );
    fs::write(world.path(), format!("{HEADER}---\n{HEADER}")).unwrap();
    assert!(world.error().contains("not YAML"), "{}", world.error());
}

#[test]
fn a_file_says_what_it_is() {
    let world = World::new();
    let version = "key apiVersion: \"kubelet-authenticator.cluster.x-k8s.io/v1alpha1\" is needed";
    let kind = "key kind: \"KubeletAuthenticatorConfiguration\" is needed";
    for (contents, expected) in [
        ("", version),
        (HEADER.split_once('\n').unwrap().0, kind),
        ("apiVersion: v1\n", version),
        ("kind: Config\n", kind),
    ] {
        fs::write(world.path(), contents).unwrap();
        assert!(
            world.error().ends_with(expected),
            "{contents:?}: {}",
            world.error()
        );
    }
}

#[test]
fn ten_megabytes_are_not_read() {
    let error = World::new().file(&"#".repeat(10 << 20)).error();

    assert_eq!(error, "/config.yaml is longer than 262144 bytes");
}

#[test]
fn a_value_that_cannot_be_is_refused_wherever_it_stands() {
    for (key, name, value, expected) in [
        (Key::NodeName, "nodeName", "N1", "a node name is"),
        (Key::ProviderId, "providerID", "i-1", "a provider ID is"),
        (
            Key::BootstrapKubeconfig,
            "bootstrapKubeconfig",
            "b",
            "a path begins with '/'",
        ),
        (
            Key::Kubeconfig,
            "kubeconfig",
            "./k",
            "a path begins with '/'",
        ),
        (
            Key::StateDirectory,
            "stateDirectory",
            "~/s",
            "a path begins with '/'",
        ),
        (Key::Audience, "audience", "a b", "an audience is"),
        (
            Key::SignerName,
            "signerName",
            "cluster-x-k8s-io/s",
            "a signer's name is",
        ),
        (
            Key::SignerName,
            "signerName",
            "example.com/s/v1",
            "a signer's name is",
        ),
        (
            Key::ExpirationSeconds,
            "expirationSeconds",
            "599",
            "a whole number from 600 to",
        ),
        (
            Key::TimeoutSeconds,
            "timeoutSeconds",
            "0",
            "a whole number from 1 to 600",
        ),
        (
            Key::TimeoutSeconds,
            "timeoutSeconds",
            "601",
            "a whole number from 1 to 600",
        ),
    ] {
        let error = World::new().file(&format!("{name}: {value}")).error();
        let wanted = format!("/config.yaml: line 3: key {name}: {expected}");
        assert!(error.starts_with(&wanted), "{error}");

        let error = World::new()
            .file("")
            .variable(key.variable(), value)
            .error();
        assert!(
            error.starts_with(&format!("{}: {expected}", key.variable())),
            "{error}"
        );

        let error = Layer::from_flags([(key, OsStr::new(value))])
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(&format!("{}: {expected}", key.flag())),
            "{error}"
        );

        let json = value
            .parse::<u32>()
            .map_or(format!("{value:?}"), |number| number.to_string());
        let extension = format!("{{\"{name}\":{json}}}");
        let error = Layer::from_extension(&extension).unwrap_err().to_string();
        let place = "KUBERNETES_EXEC_INFO: spec.cluster.config: line 1";
        assert!(
            error.starts_with(&format!("{place}: key {name}: {expected}")),
            "{error}"
        );
    }
}

#[test]
fn a_value_of_another_type_names_its_key() {
    for contents in [
        "nodeName: [a]",
        "nodeName: {a: b}",
        "expirationSeconds: soon",
        "timeoutSeconds: -1",
        "aws: [instanceProfile]",
    ] {
        let error = World::new().file(contents).error();
        let key = contents.split_once(':').unwrap().0;
        assert!(
            error.starts_with(&format!("/config.yaml: line 3: key {key}: ")),
            "{error}"
        );
    }
    let environment =
        |name: &str| (name == Key::NodeName.variable()).then(|| OsString::from_vec(vec![0xff]));
    let error = Settings::load(Given::default(), &environment, defaults()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "KUBELET_AUTHENTICATOR_NODE_NAME: it is not UTF-8"
    );
}

#[test]
fn the_extension_is_read_as_strictly_as_a_file() {
    for (extension, expected) in [
        (
            r#"{"provider":"aws"}"#,
            "key provider: there is no such key",
        ),
        (
            r#"{"nodeName":"a","nodeName":"b"}"#,
            "key nodeName: the key is there twice",
        ),
        (
            r#"{"kind":"Config"}"#,
            "key kind: \"KubeletAuthenticatorConfiguration\" is needed",
        ),
        ("[]", "not YAML"),
    ] {
        let error = Layer::from_extension(extension).unwrap_err().to_string();
        assert!(
            error.starts_with("KUBERNETES_EXEC_INFO: spec.cluster.config: "),
            "{error}"
        );
        assert!(error.contains(expected), "{error}");
    }
}
