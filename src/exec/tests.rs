use std::os::unix::ffi::OsStrExt;

use super::*;

const FULL: &str = concat!(
    r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{"#,
    r#""server":"https://127.0.0.1:6443","tls-server-name":"kubernetes","certificate-authority-data":"Q0E=","#,
    r#""proxy-url":"http://proxy:3128","config":{"nodeName":"n1"}},"interactive":false}}"#,
    "\n"
);

fn parse(text: &str) -> Result<ExecInfo<'_>, Failure> {
    ExecInfo::parse(OsStr::new(text))
}

#[test]
fn the_cluster_is_passed_through_unchanged() {
    let info = parse(FULL).unwrap();

    assert_eq!(info.version, ApiVersion::V1);
    let cluster = info.cluster.unwrap();
    assert_eq!(cluster.server, "https://127.0.0.1:6443");
    assert_eq!(cluster.tls_server_name.as_deref(), Some("kubernetes"));
    assert!(!cluster.insecure_skip_tls_verify);
    assert_eq!(cluster.certificate_authority_data.as_deref(), Some("Q0E="));
    assert_eq!(cluster.proxy_url.as_deref(), Some("http://proxy:3128"));
    let config = cluster.config.map(RawValue::get);
    assert_eq!(config, Some(r#"{"nodeName":"n1"}"#));
}

#[test]
fn both_exec_versions_are_parsed_with_and_without_a_cluster() {
    for (name, version) in [("v1", ApiVersion::V1), ("v1beta1", ApiVersion::V1Beta1)] {
        for spec in [r#"{"interactive":false}"#, "{}"] {
            let text = format!(
                r#"{{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/{name}","spec":{spec}}}"#
            );
            let info = parse(&text).unwrap();
            assert_eq!(info.version, version);
            assert!(info.cluster.is_none());
        }
    }
}

#[test]
fn an_exec_extension_can_be_any_json() {
    for config in [r#"{"a":[1,{"b":null}]}"#, "[1]", r#""text""#, "true"] {
        let text = FULL.replace(r#"{"nodeName":"n1"}"#, config);
        let cluster = parse(&text).unwrap().cluster.unwrap();
        assert_eq!(cluster.config.map(RawValue::get), Some(config));
    }
    let text = FULL.replace(r#"{"nodeName":"n1"}"#, "null");
    assert!(parse(&text).unwrap().cluster.unwrap().config.is_none());
}

#[test]
fn unknown_exec_fields_are_ignored() {
    let text = FULL.replace(
        r#""interactive":false"#,
        r#""interactive":false,"reason":{"code":401}"#,
    );

    assert!(parse(&text).is_ok());
}

#[test]
fn the_error_names_an_empty_variable() {
    for text in ["", "\n", "  "] {
        let error = parse(text).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("KUBERNETES_EXEC_INFO is empty")
        );
    }
}

#[test]
fn a_truncated_exec_info_is_distinguished_from_invalid_json() {
    let (text, _) = FULL.split_at(60);
    let error = parse(text).unwrap_err();
    assert!(error.what().ends_with("cut off after 60 bytes"), "{error}");

    for text in ["kind: ExecCredential", "{\"kind\":}", &format!("{FULL}x")] {
        let error = parse(text).unwrap_err();
        assert!(
            error.what().contains("is not valid JSON at column"),
            "{error}"
        );
    }
}

#[test]
fn a_binary_exec_info_is_refused() {
    let error = ExecInfo::parse(OsStr::from_bytes(b"\x7fELF\xff\x00")).unwrap_err();
    assert!(error.what().ends_with("is not UTF-8"), "{error}");

    let error = parse("\u{1}\u{2}").unwrap_err();
    assert!(
        error.what().contains("is not valid JSON at column"),
        "{error}"
    );
}

#[test]
fn an_exec_info_of_ten_megabytes_is_not_parsed() {
    let error = parse(&" ".repeat(10 << 20)).unwrap_err();

    assert!(error.what().contains("is 10485760 bytes long"), "{error}");
}

#[test]
fn the_error_contains_the_unsupported_kind_or_version() {
    let kind = FULL.replace("\"ExecCredential\"", "\"Config\"");
    let error = parse(&kind).unwrap_err().to_string();
    assert_eq!(
        error,
        r#"KUBERNETES_EXEC_INFO: field kind is "Config", not "ExecCredential""#
    );

    let version = FULL.replace("k8s.io/v1", "k8s.io/v1alpha1");
    let error = parse(&version).unwrap_err();
    assert!(
        error.what().contains("/v1alpha1\", which is not"),
        "{error}"
    );

    let error = parse("{}").unwrap_err();
    assert!(error.what().contains("field kind is \"\""), "{error}");
    let unversioned = r#"{"kind":"ExecCredential"}"#;
    let error = parse(unversioned).unwrap_err();
    assert!(error.what().contains("apiVersion is \"\""), "{error}");
}

#[test]
fn the_error_for_a_field_of_another_type_names_it() {
    for (from, to, expected) in [
        (r#""https://127.0.0.1:6443""#, "7", "spec.cluster.server"),
        (r#""Q0E=""#, "{}", "spec.cluster.certificate-authority-data"),
        (r#""ExecCredential""#, "[]", "kind"),
    ] {
        let text = FULL.replacen(from, to, 1);
        let error = parse(&text).unwrap_err();
        let expected = format!("field {expected} does not match");
        assert!(error.what().contains(&expected), "{error}");
    }
}

#[test]
fn an_exec_credential_is_printed_on_one_line_of_json() {
    let key = Secret::new("-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n".to_owned());
    let expiration = SystemTime::UNIX_EPOCH + Duration::from_millis(1_767_225_600_999);
    let certificate = "-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n";
    let written = exec_credential(ApiVersion::V1Beta1, expiration, certificate, &key).unwrap();

    assert_eq!(
        str::from_utf8(&written).unwrap(),
        concat!(
            r#"{"apiVersion":"client.authentication.k8s.io/v1beta1","kind":"ExecCredential","status":"#,
            r#"{"expirationTimestamp":"2026-01-01T00:00:00Z","#,
            r#""clientCertificateData":"-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n","#,
            r#""clientKeyData":"-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n"}}"#,
            "\n"
        )
    );
}

#[test]
fn an_invalid_expiry_date_is_replaced_by_the_nearest_valid_date() {
    let second = Duration::from_secs(1);
    let last = SystemTime::UNIX_EPOCH + LAST_TIMESTAMP;

    assert_eq!(
        rfc3339(SystemTime::UNIX_EPOCH - second),
        "1970-01-01T00:00:00Z"
    );
    assert_eq!(rfc3339(last), "9999-12-31T23:59:59Z");
    assert_eq!(rfc3339(last + second), "9999-12-31T23:59:59Z");
}

#[test]
fn debug_output_contains_no_proxy_password_and_no_extension() {
    let text = r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{"server":"https://x","proxy-url":"http://u:pa55@proxy","config":{"key":"pa55"}}}}"#;
    let info = ExecInfo::parse(text.as_ref()).unwrap();

    let shown = format!("{info:?}");

    assert!(
        shown.contains("https://x") && !shown.contains("pa55"),
        "{shown}"
    );
}
