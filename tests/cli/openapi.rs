//! The OpenAPI document in the repository is the one the code gives.

/// Set to have the file written instead of compared.
const BLESS: &str = "KENNEL_BLESS";

#[test]
fn the_document_in_the_repository_is_the_one_the_code_gives() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    let made = kennel_daemon::openapi() + "\n";
    if std::env::var_os(BLESS).is_some() {
        std::fs::write(&path, &made).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, made, "run the tests with {BLESS}=1 to write docs/openapi.json again");
}
