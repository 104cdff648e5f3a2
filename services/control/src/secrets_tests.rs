use weir_runtime::entropy::OsEntropy;

use super::*;

fn secret(text: &str) -> SecretString {
    SecretString::from(text.to_owned())
}

#[test]
fn a_key_hashes_to_the_same_under_one_pepper_only() {
    let (one, other) = (Pepper::new(&secret(&"a".repeat(64))).unwrap(), Pepper::new(&secret(&"b".repeat(64))).unwrap());
    assert_eq!(one.hash("weir_live_x"), one.hash("weir_live_x"));
    assert_ne!(one.hash("weir_live_x"), one.hash("weir_live_y"));
    assert_ne!(one.hash("weir_live_x"), other.hash("weir_live_x"));
}

/// RFC 4231, test case 6 (a key longer than a block) and a key of exactly 32 bytes checked with `openssl dgst`.
#[test]
fn the_hash_is_hmac_sha256() {
    let keyed = |key: &[u8], message: &[u8]| hex::encode(digest(&super::keyed(key), message));
    assert_eq!(
        keyed(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First"),
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
    );
    assert_eq!(
        keyed(b"Jefe", b"what do ya want for nothing?"),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
}

#[test]
fn a_tenant_secret_opens_only_with_its_master_key_and_its_tenant() {
    let master = MasterKey::new(&secret(&"m".repeat(64))).unwrap();
    let other = MasterKey::new(&secret(&"n".repeat(64))).unwrap();
    let (acme, evil) = (TenantId::new("tnt_acme"), TenantId::new("tnt_evil"));
    let wrapped = master.new_tenant_secret(&acme, &OsEntropy);
    let opened = master.open(&acme, &wrapped).unwrap();
    assert_eq!(master.open(&acme, &wrapped).unwrap(), opened);
    assert_eq!(other.open(&acme, &wrapped), Err(UnwrapError { tenant: acme.clone() }));
    assert_eq!(master.open(&evil, &wrapped), Err(UnwrapError { tenant: evil }));
    for at in 0..wrapped.0.len() {
        let mut changed = wrapped.clone();
        changed.0[at] ^= 1;
        assert!(master.open(&acme, &changed).is_err(), "byte {at}");
    }
    assert!(master.open(&acme, &WrappedSecret(Vec::new())).is_err());
    assert_ne!(master.new_tenant_secret(&acme, &OsEntropy), wrapped);
}

#[test]
fn secrets_are_made_once_and_never_printed() {
    let folder = tempfile::tempdir().unwrap();
    let first = ControlSecrets::open_or_create(folder.path(), &OsEntropy).unwrap();
    let again = ControlSecrets::open_or_create(folder.path(), &OsEntropy).unwrap();
    assert_eq!(first.pepper.hash("k"), again.pepper.hash("k"));
    let token = std::fs::read_to_string(folder.path().join("admin.token")).unwrap();
    assert!(again.admin_token.is(token.trim()) && !again.admin_token.is("") && !again.admin_token.is(&token));
    assert_eq!(
        format!("{first:?}"),
        "ControlSecrets { pepper: Pepper(…), master: MasterKey(…), admin_token: AdminToken(…) }"
    );
    for name in ["pepper", "master.key", "admin.token"] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = std::fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_typed_secret_is_refused_without_being_repeated() {
    let error = Pepper::new(&secret("hunter2")).unwrap_err().to_string();
    assert!(error.starts_with("the pepper has fewer than 32 characters") && !error.contains("hunter2"), "{error}");
}
