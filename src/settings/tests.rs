use std::fs;

use tempfile::TempDir;

use super::*;

mod digest;
mod refusals;

const HEADER: &str = "apiVersion: kubelet-authenticator.cluster.x-k8s.io/v1alpha1\n\
                      kind: KubeletAuthenticatorConfiguration\n";

/// A directory with settings.
struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
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

    fn load(&self, sources: Sources<'_>) -> Result<Settings, Failure> {
        let path = self.path();
        let sources = Sources {
            config: Some(&path),
            ..sources
        };
        load(sources)
    }

    fn valid(&self) -> (Settings, Option<Fault>) {
        let path = self.path();
        let sources = Sources {
            config: Some(&path),
            ..Sources::default()
        };
        Settings::valid(sources, &schema())
    }

    fn settings(&self) -> Settings {
        self.load(Sources::default()).unwrap()
    }

    fn error(&self) -> String {
        let error = self.load(Sources::default()).unwrap_err().to_string();
        error.replace(self.folder.path().to_str().unwrap(), "")
    }
}

/// The settings of a provider. One setting is in another provider's section.
const HOST: Setting<NodeName> = Setting::new("tpm.hostName", "tpm-host-name", "NAME", "A host");
const NUMBERS: Setting<Numbers> = Setting::new("tpm.pcrs", "tpm-pcrs", "NUMBERS", "Numbers");
const FOREIGN: Setting<NodeName> = Setting::new("aws.zone", "aws-zone", "NAME", "A zone");

#[derive(Debug, PartialEq, Eq)]
struct Numbers(String);

impl Value for Numbers {
    const FORM: Form = Form::Numbers;

    fn read(text: &str) -> Result<Self, Invalid> {
        if text.starts_with('0') {
            Ok(Self(text.to_owned()))
        } else {
            Err(Invalid::needed("a zero"))
        }
    }
}

#[test]
fn the_common_table_defaults_match_the_effective_defaults() {
    let schema = schema();
    let mut values = Values::default();
    for entry in schema.entries() {
        if let Some(text) = schema.default_of(entry) {
            values.set(entry, text.into()).unwrap();
        }
    }
    let given = Settings::of(values, &schema);
    let none = Settings::of(Values::default(), &schema);

    let values = none.values.clone();
    assert_eq!(Settings { values, ..given }, none);
}

fn schema() -> ProviderSchema {
    ProviderSchema {
        provider: Provider::TPM,
        settings: const { &[HOST.entry(), NUMBERS.entry(), FOREIGN.entry()] },
        expiration_seconds: 604_800,
    }
}

fn load(sources: Sources<'_>) -> Result<Settings, Failure> {
    Settings::load(sources, &schema())
}

fn entry(name: &str) -> Entry {
    schema().entries().find(|entry| entry.name == name).unwrap()
}

fn flags(name: &str, value: &str) -> Vec<(Entry, OsString)> {
    vec![(entry(name), value.into())]
}

fn node_name(settings: &Settings) -> &str {
    settings.node_name.as_ref().unwrap().as_str()
}

#[test]
fn a_settings_file_is_optional() {
    let settings = load(Sources::default()).unwrap();

    assert_eq!(
        settings,
        Settings {
            node_name: None,
            provider_id: None,
            bootstrap_kubeconfig: "/etc/kubernetes/kubelet-authenticator/bootstrap.kubeconfig"
                .into(),
            state_directory: "/var/lib/kubelet-authenticator".into(),
            audience: None,
            expiration_seconds: 604_800,
            timeout: Duration::from_mins(1),
            values: Values::default(),
        }
    );
    assert_eq!(settings.value(&HOST), None);
}

#[test]
fn every_settings_key_can_be_set_in_a_file() {
    let settings = World::new()
        .file(
            "nodeName: n1\nproviderID: aws:///a/i-1\nbootstrapKubeconfig: /b\n\
             stateDirectory: /s\naudience: one\nexpirationSeconds: 3600\ntpm:\n  hostName: h1\n  pcrs: [0, 7]\naws:\n  zone: z1\n  others: [1]\n",
        )
        .settings();

    assert_eq!(node_name(&settings), "n1");
    assert_eq!(
        settings.provider_id.as_ref().unwrap().as_str(),
        "aws:///a/i-1"
    );
    assert_eq!(settings.bootstrap_kubeconfig, Path::new("/b"));
    assert_eq!(settings.state_directory, Path::new("/s"));
    assert_eq!(settings.audience.as_ref().unwrap().as_str(), "one");
    assert_eq!(settings.expiration_seconds, 3600);
    assert_eq!(settings.value(&HOST).unwrap().as_str(), "h1");
    assert_eq!(settings.value(&NUMBERS).unwrap().0, "0,7");
    assert_eq!(settings.value(&FOREIGN).unwrap().as_str(), "z1");
}

#[test]
fn every_settings_key_has_an_option() {
    let values = [
        ("nodeName", "node-name", "n1"),
        ("providerID", "provider-id", "aws:///a/i-1"),
        ("bootstrapKubeconfig", "bootstrap-kubeconfig", "/b"),
        ("stateDirectory", "state-directory", "/s"),
        ("audience", "audience", "one"),
        ("expirationSeconds", "expiration-seconds", "3600"),
        ("tpm.hostName", "tpm-host-name", "h1"),
        ("tpm.pcrs", "tpm-pcrs", "0,4,7"),
        ("aws.zone", "aws-zone", "z1"),
    ];
    let names: Vec<&str> = schema().entries().map(|entry| entry.name).collect();
    assert_eq!(names, values.map(|(name, ..)| name));

    for (name, flag, value) in values {
        assert_eq!(entry(name).flag, flag);
        let by_flag = Sources {
            flags: flags(name, value),
            ..Sources::default()
        };
        assert_ne!(load(by_flag).unwrap(), load(Sources::default()).unwrap());
    }
}

#[test]
fn the_more_specific_source_takes_precedence() {
    let mut world = World::new();
    let found = |world: &World, flags| {
        let sources = Sources {
            flags,
            ..Sources::default()
        };
        node_name(&world.load(sources).unwrap()).to_owned()
    };

    world = world.file("nodeName: file");
    assert_eq!(found(&world, Vec::new()), "file");
    world = world.drop_in("10-a.yaml", "nodeName: drop-in-a");
    assert_eq!(found(&world, Vec::new()), "drop-in-a");
    world = world.drop_in("20-b.yaml", "nodeName: drop-in-b");
    assert_eq!(found(&world, Vec::new()), "drop-in-b");
    assert_eq!(found(&world, flags("nodeName", "flag")), "flag");
}

/// An operator must not have to search more than three sources. A change that adds a source must also change this test.
#[test]
fn a_value_can_be_set_in_a_file_a_drop_in_and_an_option() {
    let world = World::new()
        .file("nodeName: n1")
        .drop_in("a.yaml", "nodeName: n1");
    let path = world.path();
    let sources = Sources {
        config: Some(&path),
        flags: flags("nodeName", "n1"),
        removed: Vec::new(),
        time_limit: None,
    };
    let mut found = Vec::new();
    let fault = read(sources, &schema(), &mut |source, _| {
        found.push(match source {
            Source::File(_) => "file",
            Source::DropIn(_) => "drop-in",
            Source::Flag(_) => "option",
        });
    });

    assert_eq!(fault, None);
    assert_eq!(
        found,
        ["file", "drop-in", "option"],
        "a fourth source of settings needs a decision, and its row in docs/settings.md"
    );
}

#[test]
fn settings_are_merged_from_all_sources() {
    let settings = World::new()
        .file("nodeName: n1\naudience: file\ntpm: {hostName: h1, pcrs: [0]}\n")
        .drop_in("a.yaml", "audience: drop-in\ntpm: {hostName: h2}\n")
        .settings();

    assert_eq!(node_name(&settings), "n1");
    assert_eq!(settings.audience.as_ref().unwrap().as_str(), "drop-in");
    assert_eq!(settings.value(&HOST).unwrap().as_str(), "h2");
    assert_eq!(settings.value(&NUMBERS).unwrap().0, "0");
}

#[test]
fn an_empty_text_counts_as_unset() {
    let settings = World::new()
        .file("nodeName: \"\"\nproviderID:\naudience: \"\"\ntpm:\naws:\n")
        .drop_in("a.yaml", "tpm: {hostName: \"\", pcrs:}")
        .settings();

    assert_eq!(settings, load(Sources::default()).unwrap());
}

#[test]
fn hidden_and_non_yaml_files_in_the_drop_in_directory_are_ignored() {
    let settings = World::new()
        .file("")
        .drop_in(".hidden.yaml", "nodeName: n1")
        .drop_in("README", "nodeName: n1")
        .settings();

    assert_eq!(settings.node_name, None);
}

#[test]
fn drop_ins_are_read_without_a_settings_file() {
    let folder = tempfile::tempdir().unwrap();
    let default = folder.path().join("config.yaml");
    fs::create_dir(folder.path().join("config.d")).unwrap();
    fs::write(
        folder.path().join("config.d/a.yaml"),
        format!("{HEADER}nodeName: n1"),
    )
    .unwrap();

    let mut taken = Vec::new();
    let mut take = |source: Source<'_>, values, fault| {
        assert_eq!(fault, None);
        taken.push((source.to_string(), values));
    };
    file::read(None, &default, &schema(), &mut take);
    let [(path, values)] = &taken[..] else {
        panic!("{} files were read", taken.len());
    };
    assert!(path.ends_with("config.d/a.yaml"), "{path}");
    assert_eq!(values.get(&table::NODE_NAME).unwrap().as_str(), "n1");
}

#[test]
fn a_configured_settings_file_must_exist() {
    let error = World::new().load(Sources::default()).unwrap_err();
    assert!(error.what().starts_with("cannot read "), "{error:?}");
}

#[test]
fn the_error_for_an_unknown_key_has_the_file_and_line() {
    let error = World::new().file("nodeNam: n1").error();
    let wanted = "/config.yaml: line 3: key nodeNam: unknown key; the keys are apiVersion,";
    assert!(error.starts_with(wanted), "{error}");

    let error = World::new()
        .file("")
        .drop_in("a.yaml", "tpm: {hostname: x}")
        .error();
    let wanted = "/config.d/a.yaml: line 3: key tpm.hostname: unknown key; \
                  the keys are hostName, pcrs";
    assert_eq!(error, wanted);
}

#[test]
fn a_duplicate_settings_key_is_refused() {
    let error = World::new().file("nodeName: n1\nnodeName: n2\n").error();

    assert_eq!(error, "/config.yaml: line 4: key nodeName: duplicate key");
}

#[test]
fn the_error_for_invalid_yaml_has_the_file_and_line() {
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
fn a_settings_file_needs_api_version_and_kind() {
    let world = World::new();
    let version = "key apiVersion: must be \"kubelet-authenticator.cluster.x-k8s.io/v1alpha1\"";
    let kind = "key kind: must be \"KubeletAuthenticatorConfiguration\"";
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
fn a_settings_file_of_ten_megabytes_is_not_read() {
    let error = World::new().file(&"#".repeat(10 << 20)).error();

    assert_eq!(error, "/config.yaml is longer than 262144 bytes");
}
