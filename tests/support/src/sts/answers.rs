//! Responses in AWS's formats, with the same texts as from AWS.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde_json::{Value, json};

use super::roles::{Assumed, Parameters, assume_role, assume_role_with_web_identity};
use super::sigv4::{Authorization, Signing};
use super::{Call, Principal, State};

/// The maximum difference between the time of a signature and the service's clock.
const WINDOW: Duration = Duration::from_secs(15 * 60);

const ACTION: &str = "GetCallerIdentity";
const ASSUME_ROLE: &str = "AssumeRole";
const WITH_WEB_IDENTITY: &str = "AssumeRoleWithWebIdentity";
const VERSION: &str = "2011-06-15";
const REQUEST_ID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// A permitted call, or the reason why the call is denied.
pub(super) type Verdict = Result<Permitted, Denied>;

/// A permitted call.
#[derive(Debug)]
pub(super) enum Permitted {
    /// The owner of the credentials requests its own identity.
    Identity(Principal),
    /// A role was assumed, with the action that has this name.
    Assumed(&'static str, Assumed),
}

/// The refusal of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Denied {
    pub(super) status: u16,
    pub(super) code: String,
    pub(super) message: String,
}

pub(super) fn denied(status: u16, code: &str, message: impl Into<String>) -> Denied {
    Denied {
        status,
        code: code.into(),
        message: message.into(),
    }
}

/// Checks a call in the same order as AWS, and executes it. Sets the caller in the call.
pub(super) fn judge(call: &mut Call, state: &mut State) -> Verdict {
    let (path, _) = call.target.split_once('?').unwrap_or((&call.target, ""));
    if call.method != "POST" || path != "/" {
        return Err(denied(404, "UnknownOperationException", "not found"));
    }
    let parameters: Parameters = form_urlencoded::parse(call.body.as_bytes())
        .into_owned()
        .collect();
    let is_of_version = parameters
        .get("Version")
        .is_some_and(|version| version == VERSION);
    match parameters.get("Action").map(String::as_str) {
        Some(WITH_WEB_IDENTITY) if is_of_version => {
            // The call is not signed. The token identifies the caller.
            let assumed = assume_role_with_web_identity(state, &parameters)?;
            Ok(Permitted::Assumed(WITH_WEB_IDENTITY, assumed))
        }
        Some(ASSUME_ROLE) if is_of_version => {
            let caller = caller(call, state, |_| Ok(()))?;
            call.caller = Some(caller.arn.clone());
            let region = signed_for(call);
            Ok(Permitted::Assumed(
                ASSUME_ROLE,
                assume_role(state, &caller, &region, &parameters)?,
            ))
        }
        _ => {
            let caller = caller(call, state, action)?;
            call.caller = Some(caller.arn.clone());
            Ok(Permitted::Identity(caller))
        }
    }
}

/// The region in the signature of a call.
fn signed_for(call: &Call) -> String {
    let header = call.header("authorization").unwrap_or_default();
    let authorization = Authorization::parse(header);
    authorization.map_or_else(String::new, |authorization| authorization.region.to_owned())
}

/// The owner of the credentials that signed a call.
fn caller(
    call: &Call,
    state: &State,
    action: impl FnOnce(&str) -> Result<(), Denied>,
) -> Result<Principal, Denied> {
    let (path, query) = call.target.split_once('?').unwrap_or((&call.target, ""));
    let header = call.header("authorization").ok_or_else(|| {
        let message = "Request is missing Authentication Token";
        denied(403, "MissingAuthenticationToken", message)
    })?;
    let authorization = Authorization::parse(header).ok_or_else(|| {
        let message = "Authorization header requires 'Credential' parameter.";
        denied(400, "IncompleteSignature", message)
    })?;
    action(&call.body)?;
    let time = call.header("x-amz-date").ok_or_else(|| {
        let message = "Authorization header requires existence of a 'X-Amz-Date' header.";
        denied(400, "IncompleteSignature", message)
    })?;
    scope(call, &authorization, time)?;
    let invalid = || {
        let message = "The security token included in the request is invalid.";
        denied(403, "InvalidClientTokenId", message)
    };
    let (credentials, principal) = state
        .issued
        .find(authorization.access_key_id)
        .ok_or_else(invalid)?;
    let place = (principal.account.clone(), authorization.region.to_owned());
    if state.not_enabled.contains(&place) {
        return Err(invalid());
    }
    // A long-lived access key has no token.
    if call.header("x-amz-security-token").unwrap_or_default() != credentials.session_token {
        return Err(invalid());
    }
    let now = state.clock.now();
    if now >= credentials.expiration {
        let message = "The security token included in the request is expired";
        return Err(denied(403, "ExpiredToken", message));
    }
    fresh(time, now)?;
    let signing = Signing {
        method: &call.method,
        path,
        query,
        headers: &call.headers,
        signed_headers: &authorization.signed_headers,
        body: call.body.as_bytes(),
        time,
        region: authorization.region,
        service: authorization.service,
    };
    let canonical = signing.canonical_request().unwrap_or_default();
    let string_to_sign = signing.string_to_sign(&canonical);
    if signing.signature(&credentials.secret_access_key, &string_to_sign) != authorization.signature
    {
        return Err(mismatch(format!(
            "The request signature we calculated does not match the signature you provided. \
             Check your AWS Secret Access Key and signing method. Consult the service \
             documentation for details.\n\nThe Canonical String for this request should have been\
             \n'{canonical}'\n\nThe String-to-Sign should have been\n'{string_to_sign}'\n"
        )));
    }
    Ok(principal.clone())
}

fn mismatch(message: impl Into<String>) -> Denied {
    denied(403, "SignatureDoesNotMatch", message)
}

fn action(body: &str) -> Result<(), Denied> {
    let mut pairs: Vec<(String, String)> = form_urlencoded::parse(body.as_bytes())
        .into_owned()
        .collect();
    pairs.sort();
    let expected = [("Action", ACTION), ("Version", VERSION)];
    let same = |(a, b): (&(String, String), &(&str, &str))| a.0 == b.0 && a.1 == b.1;
    if pairs.len() == expected.len() && pairs.iter().zip(&expected).all(same) {
        return Ok(());
    }
    let name = |key: &str| {
        let found = pairs.iter().find(|(name, _)| name == key);
        found.map_or(String::new(), |(_, value)| value.clone())
    };
    let message = format!(
        "Could not find operation {} for version {}",
        name("Action"),
        name("Version")
    );
    Err(denied(400, "InvalidAction", message))
}

fn scope(call: &Call, authorization: &Authorization<'_>, time: &str) -> Result<(), Denied> {
    if authorization.service != "sts" {
        let message = "Credential should be scoped to correct service: 'sts'.";
        return Err(mismatch(message));
    }
    let host = call.header("host").unwrap_or_default();
    if let Some(regional) = host.strip_prefix("sts.")
        && regional.split('.').next() != Some(authorization.region)
    {
        return Err(mismatch("Credential should be scoped to a valid region."));
    }
    if time.get(..8) != Some(authorization.date) {
        return Err(mismatch(format!(
            "Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from \
             HTTP: '{}' != '{}', from '{time}'.",
            authorization.date,
            time.get(..8).unwrap_or_default()
        )));
    }
    let signed = &authorization.signed_headers;
    let must = |name: &str| name == "host" || name.starts_with("x-amz-");
    let unsigned = call
        .headers
        .iter()
        .find(|(name, _)| must(name) && !signed.contains(&name.as_str()));
    if let Some((name, _)) = unsigned {
        let message = format!("'{name}' must be a 'SignedHeader' in the AWS Authorization.");
        return Err(mismatch(message));
    }
    Ok(())
}

fn fresh(time: &str, now: SystemTime) -> Result<(), Denied> {
    let Some(signed) = parse(time) else {
        let message = format!(
            "Date must be in ISO-8601 'basic format'. Got '{time}'. See \
             http://en.wikipedia.org/wiki/ISO_8601"
        );
        return Err(denied(400, "IncompleteSignature", message));
    };
    if signed + WINDOW < now {
        return Err(mismatch(format!(
            "Signature expired: {time} is now earlier than {} ({} - 15 min.)",
            written(now - WINDOW),
            written(now)
        )));
    }
    if signed > now + WINDOW {
        return Err(mismatch(format!(
            "Signature not yet current: {time} is still later than {} ({} + 15 min.)",
            written(now + WINDOW),
            written(now)
        )));
    }
    Ok(())
}

const FORM: &str = "%Y%m%dT%H%M%SZ";

fn parse(time: &str) -> Option<SystemTime> {
    let civil = DateTime::strptime(FORM, time).ok()?;
    let zoned = civil.to_zoned(TimeZone::UTC).ok()?;
    Some(SystemTime::from(zoned.timestamp()))
}

/// The current time in the format of `x-amz-date`.
fn written(time: SystemTime) -> String {
    let timestamp = Timestamp::try_from(time).expect("a time in the supported range");
    timestamp.strftime(FORM).to_string()
}

/// The result of a valid call.
pub(super) fn identity(principal: &Principal) -> Value {
    json!({
        "Account": principal.account,
        "Arn": principal.arn,
        "UserId": principal.user_id,
    })
}

/// The response to a valid call, with these results. The response has exactly one result, unless a fault changes this.
pub(super) fn identities(results: &[Value], as_json: bool) -> String {
    if as_json {
        // The JSON is created as text, because no library can write a duplicate name.
        let results: Vec<String> = results
            .iter()
            .map(|result| format!("\"GetCallerIdentityResult\":{result},"))
            .collect();
        return format!(
            "{{\"GetCallerIdentityResponse\":{{{}\"ResponseMetadata\":{{\"RequestId\":\
             \"{REQUEST_ID}\"}}}}}}",
            results.concat()
        );
    }
    let element = |value: &Value, name: &str| {
        format!(
            "<{name}>{}</{name}>",
            value[name].as_str().unwrap_or_default()
        )
    };
    let results: Vec<String> = results
        .iter()
        .map(|result| {
            format!(
                "<GetCallerIdentityResult>{}{}{}</GetCallerIdentityResult>",
                element(result, "Arn"),
                element(result, "UserId"),
                element(result, "Account")
            )
        })
        .collect();
    format!(
        "<GetCallerIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/{VERSION}/\">{}\
         <ResponseMetadata><RequestId>{REQUEST_ID}</RequestId></ResponseMetadata>\
         </GetCallerIdentityResponse>",
        results.concat()
    )
}

/// The response to a call that assumed a role.
pub(super) fn assumed(action: &str, assumed: &Assumed) -> String {
    let Assumed {
        credentials,
        principal,
    } = assumed;
    let expiration =
        Timestamp::try_from(credentials.expiration).expect("a time in the supported range");
    format!(
        "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/{VERSION}/\"><{action}Result><Credentials>\
         <AccessKeyId>{}</AccessKeyId><SecretAccessKey>{}</SecretAccessKey><SessionToken>{}</SessionToken>\
         <Expiration>{}</Expiration></Credentials><AssumedRoleUser><Arn>{}</Arn><AssumedRoleId>{}</AssumedRoleId>\
         </AssumedRoleUser></{action}Result><ResponseMetadata><RequestId>{REQUEST_ID}</RequestId></ResponseMetadata>\
         </{action}Response>",
        credentials.access_key_id,
        credentials.secret_access_key,
        credentials.session_token,
        expiration.strftime("%Y-%m-%dT%H:%M:%SZ"),
        principal.arn,
        principal.user_id,
    )
}

/// The response to a denied call.
pub(super) fn error(denied: &Denied, as_json: bool) -> String {
    let kind = if denied.status < 500 {
        "Sender"
    } else {
        "Receiver"
    };
    if as_json {
        return json!({
            "Error": {"Code": denied.code, "Message": denied.message, "Type": kind},
            "RequestId": REQUEST_ID,
        })
        .to_string();
    }
    let message = denied.message.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<ErrorResponse xmlns=\"https://sts.amazonaws.com/doc/{VERSION}/\"><Error><Type>{kind}\
         </Type><Code>{}</Code><Message>{message}</Message></Error><RequestId>{REQUEST_ID}\
         </RequestId></ErrorResponse>",
        denied.code
    )
}
