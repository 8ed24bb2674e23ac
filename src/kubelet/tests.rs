use super::*;

fn process(arguments: &[&str]) -> Option<KubeletArguments> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cmdline");
    let mut contents = arguments.join("\0");
    contents.push('\0');
    fs::write(&file, contents).unwrap();
    KubeletArguments::of_process(&file)
}

#[test]
fn both_flag_formats_are_read() {
    for arguments in [
        &[
            "/usr/bin/kubelet",
            "--hostname-override=n1",
            "--provider-id=a:///b",
        ][..],
        &[
            "kubelet",
            "--hostname-override",
            "n1",
            "--v=2",
            "--provider-id",
            "a:///b",
        ],
        &[
            "kubelet",
            "--hostname-override=n0",
            "--provider-id",
            "a:///b",
            "--hostname-override=n1",
        ],
    ] {
        let found = process(arguments).unwrap();
        assert_eq!(found.hostname_override(), Some("n1"), "{arguments:?}");
        assert_eq!(found.provider_id(), Some("a:///b"), "{arguments:?}");
    }
}

#[test]
fn a_flag_with_underscores_is_read_as_in_the_kubelet() {
    for arguments in [
        &["kubelet", "--hostname_override=n1", "--provider_id=a:///b"][..],
        &[
            "kubelet",
            "--hostname_override",
            "n1",
            "--provider-id=a:///b",
        ],
        &[
            "kubelet",
            "--hostname-override=n_2",
            "--hostname_override=n1",
            "--provider_id",
            "a:///b",
        ],
    ] {
        let found = process(arguments).unwrap();
        assert_eq!(found.hostname_override(), Some("n1"), "{arguments:?}");
        assert_eq!(found.provider_id(), Some("a:///b"), "{arguments:?}");
    }
    for argument in [
        "__hostname-override=n1",
        "_-hostname-override=n1",
        "-hostname-override=n1",
        "--hostname.override=n1",
        "--hostname-overrides=n1",
        "--hostname_overrid=n1",
    ] {
        let found = process(&["kubelet", argument]).unwrap();
        assert_eq!(found.hostname_override(), None, "{argument}");
    }
}

#[test]
fn an_empty_or_missing_flag_counts_as_unset() {
    for arguments in [
        &["kubelet"][..],
        &["kubelet", "--hostname-override="],
        &["kubelet", "--hostname-override"],
    ] {
        assert_eq!(
            process(arguments),
            Some(KubeletArguments::default()),
            "{arguments:?}"
        );
    }
}

#[test]
fn only_the_arguments_of_a_kubelet_process_are_used() {
    for program in [
        "kubectl",
        "/usr/bin/kubeadm",
        "kubelet-wrapper",
        "/kubelet/sh",
        "",
    ] {
        assert_eq!(
            process(&[program, "--hostname-override=n1"]),
            None,
            "{program}"
        );
    }
}

#[test]
fn a_missing_process_has_no_arguments() {
    let folder = tempfile::tempdir().unwrap();

    assert_eq!(
        KubeletArguments::of_process(&folder.path().join("cmdline")),
        None
    );
}

#[test]
fn a_parent_process_that_is_not_a_kubelet_is_ignored() {
    assert_eq!(KubeletArguments::of_parent(), None);
}

#[test]
fn the_environment_files_of_the_kubeadm_unit_follow_systemd_rules() {
    for contents in [
        "KUBELET_KUBEADM_ARGS=\"--v=2 --hostname-override=n1 --provider-id=a:///b\"\n",
        "KUBELET_KUBEADM_ARGS=--hostname-override=n1 \\\n  --provider-id=a:///b",
        "KUBELET_KUBEADM_ARGS=\nKUBELET_EXTRA_ARGS='--hostname-override n1 --provider-id=a:///b'",
        "KUBELET_KUBEADM_ARGS=--hostname-override=n2\n\
         KUBELET_EXTRA_ARGS=\"--hostname-override=n1 \\\n--provider-id=a:///b\"",
    ] {
        let found = KubeletArguments::from_environment_file(contents);

        assert_eq!(found.hostname_override(), Some("n1"), "{contents:?}");
        assert_eq!(found.provider_id(), Some("a:///b"), "{contents:?}");
    }
    for contents in [
        "",
        "# KUBELET_KUBEADM_ARGS=--hostname-override=n1",
        "OTHER=--hostname-override=n1",
    ] {
        let found = KubeletArguments::from_environment_file(contents);
        assert_eq!(found.hostname_override(), None, "{contents:?}");
    }
}

/// A machine that has these files.
fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Machine) {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = root.path().join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let machine = Machine::rooted(root.path());
    (root, machine)
}

#[test]
fn the_files_of_the_kubeadm_unit_are_read_without_systemd() {
    let flag = |value: &str| format!("KUBELET_EXTRA_ARGS=\"--hostname-override={value}\"\n");
    let kubeadm = (
        KUBEADM_FLAGS,
        "KUBELET_KUBEADM_ARGS=--hostname-override=n1\n",
    );
    let (debian, fedora) = (flag("n2"), flag("n3"));
    let debian = ("/etc/default/kubelet", &*debian);
    let fedora = ("/etc/sysconfig/kubelet", &*fedora);
    for (files, expected) in [
        (&[kubeadm][..], Some("n1")),
        (&[debian], Some("n2")),
        (&[fedora], Some("n3")),
        (&[kubeadm, debian], Some("n2")),
        (&[kubeadm, fedora], Some("n3")),
        (&[(CONFIGURATION, "")], None),
    ] {
        let (_root, machine) = machine(files);

        let found = KubeletArguments::of_kubelet(&machine).unwrap().unwrap();

        assert_eq!(found.hostname_override(), expected, "{files:?}");
        assert_eq!(found.config.as_deref(), Some(CONFIGURATION));
    }
    let (_root, empty) = machine(&[]);
    assert_eq!(KubeletArguments::of_kubelet(&empty).unwrap(), None);
    let folder = format!("{KUBEADM_FLAGS}/x");
    let (_root, unreadable) = machine(&[(&folder, "")]);
    let failure = KubeletArguments::of_kubelet(&unreadable).unwrap_err();
    assert!(failure.what().contains(KUBEADM_FLAGS), "{failure}");
}

#[test]
fn the_provider_id_flag_overrides_the_configuration() {
    let (_root, machine) = machine(&[(CONFIGURATION, "providerID: a:///file\n")]);
    let config = format!("--config={CONFIGURATION}");
    for (arguments, expected) in [
        (&[config.as_str()][..], Some("a:///file")),
        (&[&config, "--provider-id=a:///flag"], Some("a:///flag")),
        (&[&config, "--provider-id="], Some("a:///file")),
        (&["--v=2"], None),
    ] {
        let found = KubeletArguments::collect(arguments);
        let id = found.configured_provider_id(&machine).unwrap();
        assert_eq!(id.as_deref(), expected, "{arguments:?}");
    }
}

#[test]
fn the_host_name_of_the_machine_comes_from_the_kernel() {
    let kernel = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(Some(&*host_name()), kernel.strip_suffix('\n'));
    assert!(!host_name().is_empty());
}
