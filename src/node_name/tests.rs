use super::*;

fn name(text: &str) -> NodeName {
    NodeName::parse(text).unwrap()
}

fn kubelet(hostname_override: &str) -> KubeletArguments {
    KubeletArguments::collect(["--hostname-override", hostname_override])
}

fn sources(host_name: &str) -> NameSources<'_> {
    NameSources {
        settings: None,
        bound: None,
        kubelet: None,
        host_name,
        bootstrap: Path::new("/b"),
    }
}

fn stored(text: &str) -> Bound {
    Bound::Stored(name(text))
}

fn of_host(host_name: &str) -> Result<NodeName, Failure> {
    sources(host_name).decide()
}

#[test]
fn the_name_comes_from_the_settings_then_kubelet_then_host_name() {
    let (settings, kubelet) = (name("settings"), kubelet("kubelet"));
    let mut sources = sources("host");
    sources.settings = Some(&settings);
    sources.kubelet = Some(&kubelet);

    assert_eq!(sources.decide(), Ok(name("settings")));
    sources.settings = None;
    assert_eq!(sources.decide(), Ok(name("kubelet")));
    sources.kubelet = None;
    assert_eq!(sources.decide(), Ok(name("host")));
}

#[test]
fn the_name_in_a_certificate_overrides_a_new_host_name() {
    let plain = KubeletArguments::default();
    for bound in [
        stored("stored"),
        Bound::Adopted(name("stored"), "/b".into()),
    ] {
        let mut sources = sources("host");
        sources.bound = Some(&bound);

        assert_eq!(sources.decide(), Ok(name("stored")));
        sources.kubelet = Some(&plain);
        assert_eq!(sources.decide(), Ok(name("stored")));
    }
}

#[test]
fn an_ignored_host_name_that_differs_from_the_certificate_is_reported() {
    let (bound, asked, plain) = (
        stored("stored"),
        name("stored"),
        KubeletArguments::default(),
    );
    let overridden = kubelet("stored");
    let mut passed_over = sources("Host");
    passed_over.bound = Some(&bound);
    passed_over.kubelet = Some(&plain);

    let failure = passed_over.passed_over().unwrap();
    assert_eq!(failure.code(), Code::NodeName);
    let words = "the host name is host, but this node was enrolled as stored";
    assert_eq!(failure.what(), words);
    let remedy = failure.remedy();
    assert!(
        remedy.starts_with("start the kubelet with --hostname-override=stored; or"),
        "{remedy}"
    );
    for fits in [
        NameSources {
            settings: Some(&asked),
            ..passed_over
        },
        NameSources {
            bound: None,
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
fn a_name_that_does_not_match_the_certificate_is_refused() {
    let (asked, kubelet) = (name("asked"), kubelet("asked"));
    let adopted = Bound::Adopted(name("stored"), "/b".into());
    for (bound, what) in [
        (&stored("stored"), "this node was enrolled as stored"),
        (&adopted, "the certificate in /b is for node stored"),
    ] {
        let mut sources = sources("host");
        sources.bound = Some(bound);
        let refused = |sources: &NameSources<'_>, source: &str, kept: &str| {
            let error = sources.decide().unwrap_err();
            assert_eq!(error.code(), Code::NodeName);
            assert_eq!(error.what(), format!("{source} is asked, but {what}"));
            let remedy = error.remedy();
            let anew = "; or, to enroll the node as asked, write a kubeconfig with a bootstrap token to /b, and ";
            assert!(remedy.starts_with(&format!("{kept}{anew}")), "{remedy}");
        };

        sources.kubelet = Some(&kubelet);
        refused(
            &sources,
            KUBELET,
            "start the kubelet with --hostname-override=stored",
        );
        sources.settings = Some(&asked);
        refused(&sources, SETTINGS, "set nodeName: stored in the settings");
        let kept = name("stored");
        sources.settings = Some(&kept);
        assert_eq!(sources.decide(), Ok(name("stored")));
    }
}

#[test]
fn node_names_are_converted_to_lower_case_as_in_the_kubelet() {
    for host_name in ["n1", "N1", " n1\n", "\tN1 "] {
        assert_eq!(of_host(host_name), Ok(name("n1")), "{host_name:?}");
    }
    let parent = kubelet("IP-10-0-0-1.EC2.Internal");
    let mut sources = sources("host");
    sources.kubelet = Some(&parent);
    assert_eq!(sources.decide(), Ok(name("ip-10-0-0-1.ec2.internal")));
}

#[test]
fn an_invalid_node_name_is_refused_with_its_source() {
    let long = "a".repeat(64);
    for (host_name, expected) in [
        ("", "empty"),
        ("  ", "empty"),
        ("n1.", "ends in a dot"),
        (long.as_str(), "longer than 63"),
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
fn a_long_name_in_the_settings_is_refused() {
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
