use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;

use super::*;

#[test]
fn an_invalid_value_is_refused_in_every_source() {
    for (name, value, expected) in [
        ("nodeName", "N1", "a node name must have"),
        ("providerID", "i-1", "a provider ID must have"),
        ("bootstrapKubeconfig", "b", "must be an absolute path"),
        ("stateDirectory", "~/s", "must be an absolute path"),
        ("audience", "a b", "an audience must have"),
        ("expirationSeconds", "599", "must be an integer from 600 to"),
    ] {
        let key = entry(name);
        let error = World::new().file(&format!("{name}: {value}")).error();
        let wanted = format!("/config.yaml: line 3: key {name}: {expected}");
        assert!(error.starts_with(&wanted), "{error}");

        let by_flag = Sources {
            flags: flags(name, value),
            ..Sources::default()
        };
        let error = load(by_flag).unwrap_err();
        assert_eq!(error.code(), Code::Usage);
        let error = error.to_string();
        assert!(
            error.starts_with(&format!("--{}: {expected}", key.flag)),
            "{error}"
        );
    }
}

#[test]
fn the_error_for_a_value_of_the_wrong_type_names_its_key() {
    for contents in [
        "nodeName: [a]",
        "nodeName: {a: b}",
        "expirationSeconds: soon",
        "expirationSeconds: -1",
        "tpm: [h1]",
    ] {
        let error = World::new().file(contents).error();
        let key = contents.split_once(':').unwrap().0;
        assert!(
            error.starts_with(&format!("/config.yaml: line 3: key {key}: ")),
            "{error}"
        );
    }
    let sources = Sources {
        flags: vec![(entry("nodeName"), OsString::from_vec(vec![0xff]))],
        ..Sources::default()
    };
    let error = load(sources).unwrap_err();
    assert_eq!(error.to_string(), "--node-name: it is not UTF-8");
}

#[test]
fn a_removed_setting_is_refused_with_its_replacement_in_every_source() {
    let keys: Vec<_> = schema().removed().map(|removed| removed.key).collect();
    assert_eq!(keys[..3], ["kubeconfig", "signerName", "timeoutSeconds"]);
    for removed in schema().removed() {
        let replacement = removed.why();
        assert!(replacement.starts_with("the setting was removed: "));
        let contents = match removed.key.split_once('.') {
            Some((section, key)) => format!("{section}: {{{key}: x}}"),
            None => format!("{}: x", removed.key),
        };
        let wanted = format!("line 3: key {}: {replacement}", removed.key);
        let in_file = World::new().file(&contents);
        let in_drop_in = World::new().file("").drop_in("a.yaml", &contents);
        for (world, place) in [(in_file, "/config.yaml"), (in_drop_in, "/config.d/a.yaml")] {
            assert_eq!(world.error(), format!("{place}: {wanted}"));
            assert!(matches!(world.valid().1, Some(Fault::Removed(_))));
        }

        let sources = Sources {
            removed: vec![removed],
            ..Sources::default()
        };
        let (settings, fault) = Settings::valid(sources, &schema());
        let Some(Fault::Removed(failure)) = fault else {
            panic!("{fault:?}");
        };
        let wanted = format!("--{}: {replacement}", removed.flag);
        assert_eq!(failure.what(), wanted);
        assert_eq!(settings, load(Sources::default()).unwrap());
    }
}

#[test]
fn valid_settings_are_read_despite_invalid_ones() {
    for (contents, is_removed) in [
        ("nodeName: n1\nsignerName: a.b/c\naudience: a", true),
        ("nodeName: n1\nnodeNam: n2\naudience: a", false),
        ("nodeName: n1\nproviderID: i-1\naudience: a", false),
        (
            "signerName: a.b/c\nnodeName: n1\nnodeNam: n2\naudience: a",
            false,
        ),
        ("nodeName: n1\naudience: a\ntpm: {hostname: h}", false),
    ] {
        let (settings, fault) = World::new().file(contents).valid();

        let found = matches!(fault, Some(Fault::Removed(_)));
        assert_eq!(found, is_removed, "{contents}: {fault:?}");
        assert_eq!(found, !matches!(fault, Some(Fault::Invalid(_))));
        assert_eq!(node_name(&settings), "n1", "{contents}");
        assert_eq!(settings.audience.unwrap().as_str(), "a", "{contents}");
    }
}

#[test]
fn a_fault_in_one_source_does_not_hide_values_of_another() {
    let world = World::new()
        .file("{")
        .drop_in("a.yaml", "timeoutSeconds: 5")
        .drop_in("b.yaml", "stateDirectory: /s");

    let (settings, fault) = world.valid();

    assert_eq!(settings.state_directory, Path::new("/s"));
    assert!(matches!(fault, Some(Fault::Invalid(_))), "{fault:?}");
    let fault = world.file("").valid().1;
    assert!(matches!(fault, Some(Fault::Removed(_))), "{fault:?}");
}

#[test]
fn settings_that_another_user_can_change_are_refused() {
    assert!(
        rustix::process::geteuid().is_root(),
        "only settings that root reads are checked: run this test as root"
    );
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    let world = || {
        World::new()
            .file("nodeName: n1")
            .drop_in("a.yaml", "nodeName: n2")
    };
    assert_eq!(world().valid().1, None);
    for (place, mode) in [
        ("config.yaml", 0o666),
        ("config.yaml", 0o664),
        ("config.yaml", 0o646),
        ("config.d/a.yaml", 0o664),
        ("config.d", 0o777),
        ("", 0o775),
    ] {
        let world = world();
        set_mode(&world.folder.path().join(place), mode);

        let (_, fault) = world.valid();

        let failure = Failure::from(fault.unwrap());
        let words = format!("has mode {mode:04o}, so other users can write it");
        assert!(failure.what().ends_with(&words), "{place}: {failure}");
        assert_eq!(failure.code(), Code::Configuration);
        let (_, command) = failure.remedy().split_once("run: ").unwrap();
        let status = Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(status.success(), "{command}: {status}");
        assert_eq!(world.valid().1, None, "{place}");
    }
    for place in ["config.yaml", "config.d/a.yaml", "config.d", ""] {
        let world = world();
        chown(world.folder.path().join(place), Some(1000), None).unwrap();
        let error = world.error();
        assert!(error.ends_with("is owned by user 1000"), "{place}: {error}");
    }
    // A settings file has no effect if other users can write to it.
    let world = world();
    set_mode(&world.folder.path().join("config.d/a.yaml"), 0o666);
    assert_eq!(world.valid().0.node_name.unwrap().as_str(), "n1");
    // The directory has the mode of /tmp.
    set_mode(world.folder.path(), 0o1777);
    set_mode(&world.folder.path().join("config.d/a.yaml"), 0o600);
    assert_eq!(world.valid().1, None);
}

#[test]
fn more_than_64_drop_ins_are_refused() {
    let mut world = World::new().file("nodeName: n0");
    for number in 0..64 {
        world = world.drop_in(&format!("{number}.yaml"), "nodeName: n1");
    }
    assert_eq!(node_name(&world.settings()), "n1");

    let error = world.drop_in("64.yaml", "nodeName: n1").error();
    assert!(
        error.ends_with("/config.d has more than 64 drop-ins"),
        "{error}"
    );
}

#[test]
fn a_settings_file_over_256_kib_is_refused() {
    let text = |len: usize| format!("nodeName: n1\n#{}", "x".repeat(len));
    let most = 256 * 1024 - HEADER.len() - text(0).len();
    let largest = World::new().file(&text(most));
    assert_eq!(node_name(&largest.settings()), "n1");

    let error = World::new().file(&text(most + 1)).error();
    assert_eq!(error, "/config.yaml is longer than 262144 bytes");
}
