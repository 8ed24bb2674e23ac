//! Words that have the format of a secret, regardless of the text before them.

use super::{LONG, decoded, line_before};

/// Prefixes of tokens, each with the minimum length of the token.
const PREFIXES: [(&str, usize); 85] = [
    ("A3-", 34),
    ("AGE-SECRET-KEY-1", 40),
    ("AIza", 39),
    ("ATATT3", 24),
    ("ATBB", 24),
    ("ATCTT3", 24),
    ("CFPAT-", 20),
    ("EAAC", 60),
    ("GOCSPX-", 20),
    ("GR1348941", 20),
    ("NRAK-", 20),
    ("PMAK-", 24),
    ("SG.", 30),
    ("dapi", 36),
    ("dckr_oat_", 16),
    ("dckr_pat_", 16),
    ("doo_v1_", 30),
    ("dop_v1_", 30),
    ("dor_v1_", 30),
    ("figd_", 20),
    ("flt_", 20),
    ("fo1_", 20),
    ("ghb_", 30),
    ("gho_", 30),
    ("ghp_", 30),
    ("ghr_", 30),
    ("ghs_", 30),
    ("ghu_", 30),
    ("github_pat_", 24),
    ("glagent-", 20),
    ("glc_", 20),
    ("glcbt-", 20),
    ("gldt-", 20),
    ("glffct-", 20),
    ("glft-", 20),
    ("glimt-", 20),
    ("glpat-", 20),
    ("glptt-", 20),
    ("glrt-", 20),
    ("glsa_", 20),
    ("glsoat-", 20),
    ("gsk_", 20),
    ("hf_", 24),
    ("hvb.", 20),
    ("hvr.", 20),
    ("hvs.", 20),
    ("lin_api_", 20),
    ("npm_", 30),
    ("nvapi-", 20),
    ("ops_eyJ", 24),
    ("phx_", 20),
    ("pk_live_", 20),
    ("pscale_tkn_", 20),
    ("pul-", 40),
    ("pypi-", 30),
    ("r8_", 24),
    ("rk_live_", 16),
    ("rk_test_", 16),
    ("s.", 26),
    ("sbp_", 20),
    ("secret-token:", 16),
    ("shpat_", 20),
    ("shpca_", 20),
    ("shppa_", 20),
    ("shpss_", 20),
    ("sk-ant-", 20),
    ("sk-proj-", 20),
    ("sk-svcacct-", 20),
    ("sk_live_", 16),
    ("sk_test_", 16),
    ("sntrys_", 20),
    ("sq0atp-", 20),
    ("sq0csp-", 20),
    ("tskey-", 16),
    ("whsec_", 16),
    ("xai-", 24),
    ("xapp-", 15),
    ("xoxa-", 15),
    ("xoxb-", 15),
    ("xoxe-", 15),
    ("xoxe.", 15),
    ("xoxp-", 15),
    ("xoxr-", 15),
    ("xoxs-", 15),
    ("ya29.", 20),
];

/// Parts that identify URLs with embedded credentials, and other secrets.
const PARTS: [&str; 6] = [
    ".atlasv1.",
    "pbkdf2.sha",
    "hooks.slack.com/services/",
    "discord.com/api/webhooks/",
    "discordapp.com/api/webhooks/",
    "webhook.office.com/webhookb",
];

/// Directories of a root file system. A word that begins with one of these directories is a path, not base64.
const FOLDERS: [&str; 14] = [
    "/boot/", "/dev/", "/etc/", "/home/", "/lib/", "/mnt/", "/opt/", "/proc/", "/root/", "/run/",
    "/srv/", "/sys/", "/usr/", "/var/",
];

/// Whether the word, or a part of a path, has the format of a secret. `before` is the text before the word.
pub(super) fn has_form(before: &str, word: &str) -> bool {
    let word = word.trim_end_matches('.');
    let line = line_before(before);
    let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder));
    let is_base64 = if is_path {
        word.split('/').any(is_long_base64)
    } else {
        is_long_base64(word) && !is_name(line)
    };
    (is_base64 && !is_certificate(word))
        || is_json_web_token(word)
        || PARTS.iter().any(|part| word.contains(part))
        || is_hash(line, word)
        || is_bot_token(line, word)
        || word
            .split('/')
            .any(|part| is_bootstrap_token(part) || is_access_key_id(part) || is_known(part))
}

/// Whether an AWS role name or an SSH key digest follows.
fn is_name(line: &str) -> bool {
    let mut chunks = line.rsplit(|it: char| it.is_whitespace() || "\"'=,".contains(it));
    let start = chunks.next().unwrap_or_default();
    start.starts_with("arn:") || start == "SHA256:"
}

/// Whether a word, as the only word in its line, can be a part of base64.
pub(super) fn is_line_of_base64(word: &str) -> bool {
    let is_padded = word.ends_with('=') && word.len().is_multiple_of(4);
    let bare = word.trim_end_matches('=');
    let is_plain = |it: u8| it.is_ascii_alphanumeric() || b"+/".contains(&it);
    let is_path = FOLDERS.iter().any(|folder| word.starts_with(folder));
    !is_path
        && bare.bytes().all(is_plain)
        && (bare.len() >= 20 && is_mixed(bare) || is_padded && bare.len() >= 6)
}

fn is_known(word: &str) -> bool {
    let is_of_token = |it: u8| it.is_ascii_alphanumeric() || b"-_.:".contains(&it);
    let has = |(prefix, len): &(&str, usize)| word.starts_with(prefix) && word.len() >= *len;
    PREFIXES.iter().any(has)
        && word.bytes().all(is_of_token)
        && word
            .bytes()
            .any(|it| it.is_ascii_digit() || it.is_ascii_uppercase())
        && (!word.starts_with("s.") || word.len() <= 28)
}

/// Whether the word is a password hash, as in `/etc/shadow`: `$6$salt$hash`.
fn is_hash(line: &str, word: &str) -> bool {
    let has = |is: fn(&u8) -> bool| word.as_bytes().iter().any(is);
    let is_part = line.ends_with('$') && line.trim_end_matches('$').contains('$');
    is_part && word.len() >= 20 && has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase)
}

/// Whether the word is a Telegram bot token: a number, followed by 35 characters.
fn is_bot_token(line: &str, word: &str) -> bool {
    let number = line.strip_suffix(':').unwrap_or_default();
    let digits = number.bytes().rev().take_while(u8::is_ascii_digit).count();
    digits >= 8 && word.len() == 35 && word.starts_with("AA")
}

/// A `bootstrap.kubernetes.io` token.
fn is_bootstrap_token(word: &str) -> bool {
    let is_plain = |text: &str| {
        let mut bytes = text.bytes();
        bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    word.split_once('.').is_some_and(|(id, secret)| {
        id.len() == 6 && secret.len() == 16 && is_plain(id) && is_plain(secret)
    })
}

/// Whether the word is an AWS access key ID. The ID is not secret, but an attacker could search for the matching
/// secret.
fn is_access_key_id(word: &str) -> bool {
    let is_upper = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
    word.len() == 20
        && (word.starts_with("ASIA") || word.starts_with("AKIA"))
        && word.bytes().all(is_upper)
}

fn is_json_web_token(word: &str) -> bool {
    word.starts_with("eyJ") && word.len() >= LONG && word.contains('.')
}

/// Whether the word is long, and contains uppercase letters, lowercase letters and digits. Hexadecimal digests do not
/// match.
fn is_long_base64(word: &str) -> bool {
    word.len() >= LONG && !word.contains('.') && is_mixed(word)
}

fn is_mixed(word: &str) -> bool {
    let number = word.strip_prefix("0x").unwrap_or_default();
    if !number.is_empty() && number.bytes().all(|it| it.is_ascii_hexdigit()) {
        return false;
    }
    let has = |is: fn(&u8) -> bool| word.as_bytes().iter().any(is);
    has(u8::is_ascii_uppercase) && has(u8::is_ascii_lowercase) && has(u8::is_ascii_digit)
}

/// Whether the word is a PEM certificate in base64, as in a kubeconfig. Certificates are public.
fn is_certificate(word: &str) -> bool {
    decoded(word).is_some_and(|text| {
        let mut blocks = text.split("-----BEGIN ").skip(1).peekable();
        text.starts_with("-----BEGIN ")
            && blocks.peek().is_some()
            && blocks.all(|block| block.starts_with("CERTIFICATE-----"))
    })
}
