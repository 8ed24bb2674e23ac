//! Tests that the simulated STS denies the same calls as AWS, with the same errors.

use std::time::{Duration, SystemTime};

use kubelet_authenticator_test_support::sts::{Credentials, Principal, Signing, Sts, Trust, sign};
use reqwest::blocking::{Client, ClientBuilder};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, pem::PemObject as _};

const BODY: &str = "Action=GetCallerIdentity&Version=2011-06-15";
const NOON: &str = "20260101T120000Z";
const ACCOUNT: &str = "123456789012";
const INSTANCE: &str = "i-0123456789abcdef0";

fn noon() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(490_908)
}

/// A call that a test can change before or after the call is signed.
#[derive(Clone)]
struct Call {
    method: &'static str,
    target: &'static str,
    headers: Vec<(String, String)>,
    signed: Vec<&'static str>,
    body: String,
    region: &'static str,
    service: &'static str,
    credentials: Credentials,
}

impl Call {
    fn valid(sts: &Sts) -> Self {
        let credentials = sts.credentials(Principal::instance(ACCOUNT, INSTANCE));
        let headers = [
            ("accept", "application/json"),
            ("host", &sts.host()),
            ("x-amz-date", NOON),
            ("x-amz-security-token", &credentials.session_token),
            ("x-kubelet-attestation", "00"),
        ];
        Self {
            method: "POST",
            target: "/",
            headers: headers.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
            signed: vec![
                "host",
                "x-amz-date",
                "x-amz-security-token",
                "x-kubelet-attestation",
            ],
            body: BODY.to_owned(),
            region: "eu-west-1",
            service: "sts",
            credentials,
        }
    }

    fn sign(mut self) -> Self {
        let (path, query) = self.target.split_once('?').unwrap_or((self.target, ""));
        let signing = Signing {
            method: self.method,
            path,
            query,
            headers: &self.headers,
            signed_headers: &self.signed,
            body: self.body.as_bytes(),
            time: NOON,
            region: self.region,
            service: self.service,
        };
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/20260101/{}/{}/aws4_request, SignedHeaders={}, \
             Signature={}",
            self.credentials.access_key_id,
            self.region,
            self.service,
            self.signed.join(";"),
            sign(&signing, &self.credentials.secret_access_key)
        );
        self.headers.push(("authorization".into(), authorization));
        self
    }

    fn header(&mut self, name: &str, value: &str) {
        let mut headers = self.headers.iter_mut();
        headers.find(|(header, _)| header == name).unwrap().1 = value.into();
    }

    /// Sends the call. Returns the status and the body of the response.
    fn send(&self, sts: &Sts) -> (u16, String) {
        let url = format!("{}{}", sts.url(), self.target);
        let mut request = client(sts)
            .request(self.method.parse().unwrap(), url)
            .body(self.body.clone());
        for (name, value) in self.headers.iter().filter(|(name, _)| name != "host") {
            request = request.header(name, value);
        }
        let response = request.send().unwrap();
        (response.status().as_u16(), response.text().unwrap())
    }
}

fn client(sts: &Sts) -> Client {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_slice(sts.ca_pem().as_bytes()).unwrap();
    roots.add(authority).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    ClientBuilder::new()
        .tls_backend_preconfigured(config)
        .no_proxy()
        .timeout(Duration::from_secs(60))
        .build()
        .unwrap()
}

fn started() -> Sts {
    let sts = Sts::start();
    sts.stop_clock(noon());
    sts
}

#[test]
fn a_signed_call_is_answered_with_its_principal_in_json_or_xml() {
    let sts = started();
    let call = Call::valid(&sts).sign();

    let (status, body) = call.send(&sts);

    let answer: serde_json::Value = serde_json::from_str(&body).unwrap();
    let result = &answer["GetCallerIdentityResponse"]["GetCallerIdentityResult"];
    let arn = format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}");
    assert_eq!(status, 200);
    assert_eq!(result["Arn"], arn);
    assert_eq!(
        result["UserId"],
        format!("{ACCOUNT}:aws:ec2-instance:{INSTANCE}")
    );
    assert_eq!(result["Account"], ACCOUNT);

    let mut xml = Call::valid(&sts);
    xml.header("accept", "*/*");
    let (status, body) = xml.sign().send(&sts);
    assert_eq!(status, 200);
    assert!(body.starts_with("<GetCallerIdentityResponse "), "{body}");
    assert!(body.contains(&format!("<Arn>{arn}</Arn>")), "{body}");
}

#[test]
fn a_header_changed_after_signing_is_refused() {
    let sts = started();
    let valid = Call::valid(&sts).sign();
    let mut binding = valid.clone();
    binding.header("x-kubelet-attestation", "01");
    let mut date = valid.clone();
    date.header("x-amz-date", "20260101T120001Z");
    for changed in [binding, date] {
        let (status, body) = changed.send(&sts);

        assert_eq!(status, 403);
        assert!(
            body.contains("\"Code\":\"SignatureDoesNotMatch\""),
            "{body}"
        );
        assert!(
            body.contains("The Canonical String for this request"),
            "{body}"
        );
    }
    let outcomes: Vec<String> = sts.calls().into_iter().map(|call| call.outcome).collect();
    assert_eq!(outcomes, ["SignatureDoesNotMatch"; 2]);
}

#[test]
fn each_sts_refusal_has_its_error_code() {
    let sts = started();
    let valid = Call::valid(&sts);
    let mut unsigned = valid.clone();
    unsigned
        .signed
        .retain(|name| *name != "x-amz-security-token");
    let changed = |change: &dyn Fn(&mut Call)| {
        let mut call = valid.clone();
        change(&mut call);
        call.sign()
    };
    for (call, status, words) in [
        (valid.clone(), 403, "MissingAuthenticationToken"),
        (
            unsigned.sign(),
            403,
            "'x-amz-security-token' must be a 'SignedHeader'",
        ),
        (
            changed(&|call| call.service = "ec2"),
            403,
            "scoped to correct service: 'sts'",
        ),
        (
            changed(&|call| call.body = "Action=GetSessionToken&Version=2011-06-15".into()),
            400,
            "InvalidAction",
        ),
        (
            changed(&|call| call.body = format!("{BODY}&action=GetSessionToken")),
            400,
            "InvalidAction",
        ),
        (
            changed(&|call| call.body = format!("{BODY}&Action=GetSessionToken")),
            400,
            "InvalidAction",
        ),
        (
            changed(&|call| call.target = "/x"),
            404,
            "UnknownOperationException",
        ),
        (
            changed(&|call| call.method = "PUT"),
            404,
            "UnknownOperationException",
        ),
        (
            changed(&|call| call.credentials.access_key_id = "ASIAX".into()),
            403,
            "InvalidClientTokenId",
        ),
        (
            changed(&|call| call.header("x-amz-security-token", "x")),
            403,
            "InvalidClientTokenId",
        ),
        (
            changed(&|call| call.credentials.secret_access_key = "x".into()),
            403,
            "SignatureDoesNotMatch",
        ),
    ] {
        let (answered, body) = call.send(&sts);

        assert_eq!(answered, status, "{words}: {body}");
        assert!(body.contains(words), "{words}: {body}");
    }
}

#[test]
fn expiry_errors_have_the_messages_of_aws() {
    let sts = started();
    let call = Call::valid(&sts).sign();
    for (clock, words) in [
        (
            noon() + Duration::from_mins(16),
            "Signature expired: 20260101T120000Z is now earlier than 20260101T120100Z \
             (20260101T121600Z - 15 min.)",
        ),
        (
            noon() - Duration::from_mins(16),
            "Signature not yet current: 20260101T120000Z is still later than 20260101T115900Z \
             (20260101T114400Z + 15 min.)",
        ),
        (
            noon() + Duration::from_hours(7),
            "The security token included in the request is expired",
        ),
    ] {
        sts.stop_clock(clock);

        let (status, body) = call.send(&sts);

        assert_eq!(status, 403);
        assert!(body.contains(words), "{body}");
    }
    sts.stop_clock(noon() + Duration::from_mins(15));
    assert_eq!(call.send(&sts).0, 200);
}

/// A call to AssumeRole with these parameters in addition to the action.
fn assume(sts: &Sts, parameters: &[(&str, &str)]) -> (u16, String) {
    let mut call = Call::valid(sts);
    let mut body = form_urlencoded::Serializer::new(String::new());
    body.append_pair("Action", "AssumeRole")
        .append_pair("Version", "2011-06-15");
    call.body = body.extend_pairs(parameters).finish();
    call.sign().send(sts)
}

#[test]
fn parameters_of_a_session_are_checked_before_the_trust_policy() {
    let sts = started();
    let arn = "arn:aws:iam::123456789012:role/nodes";
    let caller = format!("arn:aws:sts::{ACCOUNT}:assumed-role/aws:ec2-instance/{INSTANCE}");
    let (role, session) = (("RoleArn", arn), ("RoleSessionName", "a@b"));
    let long = "a".repeat(65);
    for (parameters, code) in [
        (&[("RoleArn", "nodes"), session][..], "ValidationError"),
        (&[role, ("RoleSessionName", "a")], "ValidationError"),
        (&[role, ("RoleSessionName", &long)], "ValidationError"),
        (&[role, session, ("ExternalId", "a b")], "ValidationError"),
        (
            &[role, session, ("PolicyArns.member.1.arn", "a")],
            "ValidationError",
        ),
        (&[role, session, ("Policy", "{")], "MalformedPolicyDocument"),
        (&[role, session], "AccessDenied"),
    ] {
        let before = sts.calls().len();
        let (_, body) = assume(&sts, parameters);
        assert!(body.contains(code), "{parameters:?}: {body}");
        let [call] = &*sts.calls_after(before) else {
            panic!("{:?}", sts.calls());
        };
        assert_eq!(call.outcome, code);
        assert_eq!(call.caller.as_deref(), Some(&*caller));
    }
    sts.role(arn, Trust::of(&caller));
    assert_eq!(assume(&sts, &[role, session]).0, 200);
    let last = sts.calls().pop().unwrap();
    assert_eq!(last.parameter("RoleSessionName").as_deref(), Some("a@b"));
}
