; Installer for Windows, for one user, without administrator rights. Inno Setup 6.3 or newer:
;
;   iscc packaging\windows\watchdog.iss
;
; Wants dist\watchdog, made by PyInstaller (packaging\pyinstaller\watchdog.spec). Untested, and not
; to be given to anybody yet: see README.md in this folder.

#define Root AddBackslash(SourcePath) + "..\.."
#define Version "0.1.0"

[Setup]
AppId={{C3AB44D1-D9DE-56CC-A1B4-182EAC33C742}
AppName=Watchdog
AppVersion={#Version}
AppPublisher=The watchdog authors
DefaultDirName={autopf}\Watchdog
DefaultGroupName=Watchdog
DisableProgramGroupPage=yes
PrivilegesRequired=lowest
ArchitecturesAllowed=x64compatible
ArchitecturesInstallIn64BitMode=x64compatible
MinVersion=10.0.17763
LicenseFile={#Root}\LICENSE
OutputDir={#Root}\dist
OutputBaseFilename=watchdog-{#Version}-setup
UninstallDisplayIcon={app}\watchdog.exe
Compression=lzma2
SolidCompression=yes
WizardStyle=modern
; The files of a daemon that runs cannot be replaced: it is asked to end first.
CloseApplications=yes

[Tasks]
Name: login; Description: "Start Watchdog when I log in"

[InstallDelete]
; Libraries of an older version must not stay beside those of this one.
Type: filesandordirs; Name: "{app}\_internal"

[Files]
Source: "{#Root}\dist\watchdog\*"; DestDir: "{app}"; Flags: recursesubdirs ignoreversion
Source: "{#Root}\LICENSE"; DestDir: "{app}"; Flags: ignoreversion

[Icons]
Name: "{group}\Watchdog"; Filename: "{app}\watchdogw.exe"; Parameters: "tray"
Name: "{group}\Watchdog live view"; Filename: "{app}\watchdog.exe"; Parameters: "top"
Name: "{group}\Uninstall Watchdog"; Filename: "{uninstallexe}"

[Registry]
; Login of this user; watchdogw opens no console.
Root: HKCU; Subkey: "Software\Microsoft\Windows\CurrentVersion\Run"; ValueType: string; \
    ValueName: "Watchdog daemon"; ValueData: """{app}\watchdogw.exe"" start"; \
    Flags: uninsdeletevalue; Tasks: login
Root: HKCU; Subkey: "Software\Microsoft\Windows\CurrentVersion\Run"; ValueType: string; \
    ValueName: "Watchdog"; ValueData: """{app}\watchdogw.exe"" tray"; \
    Flags: uninsdeletevalue; Tasks: login

[Run]
Filename: "{app}\watchdogw.exe"; Parameters: "tray"; Description: "Start Watchdog now"; \
    Flags: postinstall nowait skipifsilent

[UninstallRun]
Filename: "{app}\watchdog.exe"; Parameters: "stop"; RunOnceId: "StopDaemon"; Flags: runhidden
Filename: "{cmd}"; Parameters: "/c taskkill /im watchdogw.exe /f"; RunOnceId: "EndIcon"; \
    Flags: runhidden

[Code]
function PrepareToInstall(var NeedsRestart: Boolean): String;
var
  Status: Integer;
begin
  // An update: the daemon of the older version ends and gives its files free.
  if FileExists(ExpandConstant('{app}\watchdog.exe')) then
    Exec(ExpandConstant('{app}\watchdog.exe'), 'stop', '', SW_HIDE, ewWaitUntilTerminated, Status);
  Result := '';
end;
