"""The program `sealane`, which is installed whether what its commands need is there or not."""


def main() -> None:
    """Runs the command line.

    Raises:
        SystemExit: at its end; the extra `local` may be missing.
    """
    try:
        from sealane.local.cli import app
    except ModuleNotFoundError as error:
        raise SystemExit(f"sealane: there is no {error.name} here: pip install 'sealane[local]'") from None
    app()


if __name__ == "__main__":
    main()
