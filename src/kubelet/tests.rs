use super::*;

fn process(arguments: &[&str]) -> Option<KubeletArguments> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cmdline");
    let mut contents = arguments.join("\0");
    contents.push('\0');
    std::fs::write(&file, contents).unwrap();
    KubeletArguments::of_process(&file)
}

fn kubeadm(contents: &str) -> KubeletArguments {
    KubeletArguments::from_environment_file(contents)
}

#[test]
fn both_ways_to_write_a_flag_are_read() {
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
fn a_flag_that_is_empty_or_not_there_says_nothing() {
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
fn only_a_kubelet_is_asked() {
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
fn a_process_that_is_gone_says_nothing() {
    let folder = tempfile::tempdir().unwrap();

    assert_eq!(
        KubeletArguments::of_process(&folder.path().join("cmdline")),
        None
    );
}

#[test]
fn this_tests_parent_is_no_kubelet() {
    assert_eq!(KubeletArguments::of_parent(), None);
}

#[test]
fn kubeadms_file_is_read() {
    let found = kubeadm(
        "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=unix:///run/c.sock --hostname-override=n1 --provider-id=a:///b\"\n",
    );

    assert_eq!(found.hostname_override(), Some("n1"));
    assert_eq!(found.provider_id(), Some("a:///b"));
    for contents in [
        "",
        "# KUBELET_KUBEADM_ARGS=--hostname-override=n1",
        "OTHER=--hostname-override=n1",
    ] {
        assert_eq!(
            kubeadm(contents),
            KubeletArguments::default(),
            "{contents:?}"
        );
    }
}

#[test]
fn kubeadms_file_need_not_be_there() {
    let folder = tempfile::tempdir().unwrap();

    assert_eq!(
        KubeletArguments::of_kubeadm(&folder.path().join("none")).unwrap(),
        None
    );
    let error = KubeletArguments::of_kubeadm(folder.path()).unwrap_err();
    assert!(
        error.to_string().contains(folder.path().to_str().unwrap()),
        "{error}"
    );
}

#[test]
fn the_host_has_a_name() {
    assert!(!host_name().is_empty());
}
