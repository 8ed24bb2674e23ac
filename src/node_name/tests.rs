use super::*;

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

fn kubelet(hostname_override: &str) -> KubeletArguments {
    KubeletArguments::collect(["--hostname-override", hostname_override])
}

fn sources(host_name: &str) -> NameSources<'_> {
    NameSources {
        host_name,
        ..NameSources::default()
    }
}

fn of_host(host_name: &str) -> Result<NodeName, Failure> {
    sources(host_name).decide()
}

#[test]
fn the_settings_win_over_the_kubelet_and_that_over_the_machine() {
    let (settings, parent, kubeadm) = (name("settings"), kubelet("parent"), kubelet("kubeadm"));
    let mut sources = NameSources {
        settings: Some(&settings),
        stored: None,
        kubelet: Some(&parent),
        kubeadm: Some(&kubeadm),
        host_name: "host",
    };

    assert_eq!(sources.decide(), Ok(name("settings")));
    sources.settings = None;
    assert_eq!(sources.decide(), Ok(name("parent")));
    sources.kubelet = None;
    assert_eq!(sources.decide(), Ok(name("kubeadm")));
    sources.kubeadm = None;
    assert_eq!(sources.decide(), Ok(name("host")));
}

#[test]
fn a_stored_name_outlives_a_new_host_name() {
    let (stored, kubeadm) = (name("stored"), kubelet("kubeadm"));
    let mut sources = sources("host");
    sources.stored = Some(&stored);
    sources.kubeadm = Some(&kubeadm);

    assert_eq!(sources.decide(), Ok(name("stored")));
}

#[test]
fn a_host_name_is_passed_over_where_only_the_store_says_another() {
    let (stored, asked, plain) = (name("stored"), name("stored"), KubeletArguments::default());
    let overridden = kubelet("stored");
    let passed_over = NameSources {
        settings: None,
        stored: Some(&stored),
        kubelet: Some(&plain),
        kubeadm: None,
        host_name: "Host",
    };

    assert_eq!(passed_over.passed_over(), Some(name("host")));
    for fits in [
        NameSources {
            settings: Some(&asked),
            ..passed_over
        },
        NameSources {
            stored: None,
            ..passed_over
        },
        NameSources {
            kubelet: None,
            ..passed_over
        },
        NameSources {
            kubelet: Some(&overridden),
            ..passed_over
        },
        NameSources {
            host_name: "Stored",
            ..passed_over
        },
    ] {
        assert_eq!(fits.passed_over(), None, "{fits:?}");
    }
}

#[test]
fn a_stored_name_does_not_yield_to_who_asks_for_another() {
    let (stored, asked, parent) = (name("stored"), name("asked"), kubelet("asked"));
    let mut sources = sources("host");
    sources.stored = Some(&stored);
    let mismatch = |sources: &NameSources<'_>, source: &str| {
        let error = sources.decide().unwrap_err();
        assert_eq!(error.code(), Code::NodeName);
        let words = format!("{source} is asked, but this node was enrolled as stored");
        assert_eq!(error.what(), words);
    };

    sources.kubelet = Some(&parent);
    mismatch(&sources, KUBELET);
    sources.settings = Some(&asked);
    mismatch(&sources, SETTINGS);
    sources.settings = Some(&stored);
    assert_eq!(sources.decide(), Ok(stored.clone()));
}

#[test]
fn names_are_folded_as_the_kubelet_folds_them() {
    for host_name in ["n1", "N1", " n1\n", "\tN1 "] {
        assert_eq!(of_host(host_name), Ok(name("n1")), "{host_name:?}");
    }
    let parent = kubelet("IP-10-0-0-1.EC2.Internal");
    let mut sources = sources("host");
    sources.kubelet = Some(&parent);
    assert_eq!(sources.decide(), Ok(name("ip-10-0-0-1.ec2.internal")));
}

#[test]
fn a_name_that_no_node_can_have_is_refused_with_its_source() {
    let long = "a".repeat(64);
    for (host_name, expected) in [
        ("", "empty"),
        ("  ", "empty"),
        ("n1.", "ends in a dot"),
        (long.as_str(), "longer than the 63"),
        ("n_1", "lower-case letters"),
        ("-n1", "lower-case letters"),
        ("n\u{e4}", "lower-case letters"),
    ] {
        let error = of_host(host_name).unwrap_err();
        assert_eq!(error.code(), Code::Configuration);
        assert!(error.what().contains(expected), "{host_name:?}: {error}");
        assert!(error.what().starts_with("the host name is "), "{error}");
        assert!(error.remedy().contains("--hostname-override"), "{error}");
    }
    assert!(of_host(&"a".repeat(63)).is_ok());
}

#[test]
fn a_long_name_in_the_settings_is_refused_too() {
    let settings = name(&format!("{}.example", "a".repeat(60)));
    let mut sources = sources("host");
    sources.settings = Some(&settings);

    let error = sources.decide().unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("nodeName in the settings is "),
        "{error}"
    );
}

#[test]
fn the_kubelets_own_provider_id_wins_over_kubeadms() {
    let (parent, kubeadm) = (
        KubeletArguments::collect(["--provider-id=a:///parent"]),
        KubeletArguments::collect(["--provider-id=a:///kubeadm"]),
    );
    let none = KubeletArguments::default();
    let found = |kubelet, kubeadm| {
        kubelets_provider_id(kubelet, kubeadm).map(|found| found.unwrap().to_string())
    };

    assert_eq!(
        found(Some(&parent), Some(&kubeadm)).as_deref(),
        Some("a:///parent")
    );
    assert_eq!(
        found(Some(&none), Some(&kubeadm)).as_deref(),
        Some("a:///kubeadm")
    );
    assert_eq!(found(None, None), None);
    let wrong = KubeletArguments::collect(["--provider-id=wrong"]);
    assert!(kubelets_provider_id(Some(&wrong), None).unwrap().is_err());
}
