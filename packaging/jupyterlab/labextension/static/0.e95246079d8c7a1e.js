"use strict";(self.rspackChunkwatchdog_app=self.rspackChunkwatchdog_app||[]).push([[0],{17(e,t,r){var o=r(18),a=r.n(o),n=r(19),i=(r.n(n))()(a());i.push([e.id,`/* Colours of the levels; the same in the status bar, the popup and the banner. */
[data-level] {
  --wd-color: #009e73;
}

[data-level='watch'] {
  --wd-color: #2b86c5;
}

[data-level='warning'] {
  --wd-color: #b87800;
}

[data-level='critical'] {
  --wd-color: #d5281e;
}

[data-level='unknown'] {
  --wd-color: #808080;
}

.wd-dot {
  display: inline-block;
  width: 8px;
  height: 8px;
  margin-right: 6px;
  border-radius: 50%;
  background: var(--wd-color);
}

button.wd-status {
  max-width: 48em;
  padding: 0 6px;
  border: 0;
  overflow: hidden;
  background: none;
  color: inherit;
  font: inherit;
  white-space: nowrap;
  text-overflow: ellipsis;
  cursor: pointer;
}

button.wd-status[data-level='warning'],
button.wd-status[data-level='critical'] {
  background: var(--wd-color);
  color: white;
  font-weight: 600;
}

button.wd-status[data-level='warning'] .wd-dot,
button.wd-status[data-level='critical'] .wd-dot {
  background: white;
}

.wd-tasks {
  max-width: 42em;
  padding: 8px 12px;
  border: var(--jp-border-width) solid var(--jp-border-color1);
  overflow-wrap: anywhere;
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.wd-task {
  margin-top: 8px;
}

.wd-memory {
  margin-left: 8px;
  color: var(--jp-ui-font-color2);
}

.wd-fact {
  margin-left: 14px;
  color: var(--jp-ui-font-color2);
}

.wd-banner {
  display: flex;
  align-items: center;
  gap: 12px;
  min-height: 48px; /* the panel gives the banner this height */
  padding: 0 12px;
  box-sizing: border-box;
  border-left: 6px solid var(--wd-color);
  background: var(--jp-layout-color2);
  color: var(--jp-ui-font-color1);
  font-size: var(--jp-ui-font-size1);
}

.wd-banner.lm-mod-hidden {
  display: none;
}

.wd-texts {
  flex: 1;
  min-width: 0;
}

.wd-title,
.wd-detail {
  overflow: hidden;
  white-space: nowrap;
  text-overflow: ellipsis;
}

.wd-title {
  font-weight: 600;
}

.wd-detail {
  color: var(--jp-ui-font-color2);
}

.wd-buttons {
  display: flex;
  gap: 6px;
}

.wd-button {
  border: var(--jp-border-width) solid var(--jp-border-color1);
  background: var(--jp-layout-color1);
  color: var(--jp-ui-font-color1);
  cursor: pointer;
}

.wd-button:hover:enabled {
  background: var(--jp-layout-color3);
}

.wd-text {
  max-height: 50vh;
  margin: 0;
  overflow: auto;
  white-space: pre-wrap;
  font-size: var(--jp-code-font-size);
}

.wd-death {
  max-width: 46em;
  overflow-wrap: anywhere;
}

.wd-cause {
  white-space: pre-line;
}

.wd-saved {
  font-weight: 600;
}

.wd-button:disabled {
  opacity: 0.5;
  cursor: default;
}
`,""]),r.d(t,{},{A:i})},19(e){e.exports=function(e){var t=[];return t.toString=function(){return this.map(function(t){var r="",o=void 0!==t[5];return t[4]&&(r+="@supports (".concat(t[4],") {")),t[2]&&(r+="@media ".concat(t[2]," {")),o&&(r+="@layer".concat(t[5].length>0?" ".concat(t[5]):""," {")),r+=e(t),o&&(r+="}"),t[2]&&(r+="}"),t[4]&&(r+="}"),r}).join("")},t.i=function(e,r,o,a,n){"string"==typeof e&&(e=[[null,e,void 0]]);var i={};if(o)for(var d=0;d<this.length;d++){var c=this[d][0];null!=c&&(i[c]=!0)}for(var l=0;l<e.length;l++){var s=[].concat(e[l]);o&&i[s[0]]||(void 0!==n&&(void 0===s[5]||(s[1]="@layer".concat(s[5].length>0?" ".concat(s[5]):""," {").concat(s[1],"}")),s[5]=n),r&&(s[2]&&(s[1]="@media ".concat(s[2]," {").concat(s[1],"}")),s[2]=r),a&&(s[4]?(s[1]="@supports (".concat(s[4],") {").concat(s[1],"}"),s[4]=a):s[4]="".concat(a)),t.push(s))}},t}},18(e){e.exports=function(e){return e[1]}},10(e,t,r){r.r(t);var o=r(11),a=r.n(o),n=r(12),i=r.n(n),d=r(13),c=r.n(d),l=r(14),s=r.n(l),p=r(15),u=r.n(p),f=r(16),v=r.n(f),h=r(17),w={};w.styleTagTransform=v(),w.setAttributes=s(),w.insert=c().bind(null,"head"),w.domAPI=i(),w.insertStyleElement=u(),a()(h.A,w);let m=h.A&&h.A.locals?h.A.locals:void 0;r.d(t,{},{default:m})},11(e){var t=[];function r(e){for(var r=-1,o=0;o<t.length;o++)if(t[o].identifier===e){r=o;break}return r}function o(e,o){for(var a={},n=[],i=0;i<e.length;i++){var d=e[i],c=o.base?d[0]+o.base:d[0],l=a[c]||0,s="".concat(c," ").concat(l);a[c]=l+1;var p=r(s),u={css:d[1],media:d[2],sourceMap:d[3],supports:d[4],layer:d[5]};if(-1!==p)t[p].references++,t[p].updater(u);else{var f=function(e,t){var r=t.domAPI(t);return r.update(e),function(t){t?(t.css!==e.css||t.media!==e.media||t.sourceMap!==e.sourceMap||t.supports!==e.supports||t.layer!==e.layer)&&r.update(e=t):r.remove()}}(u,o);o.byIndex=i,t.splice(i,0,{identifier:s,updater:f,references:1})}n.push(s)}return n}e.exports=function(e,a){var n=o(e=e||[],a=a||{});return function(e){e=e||[];for(var i=0;i<n.length;i++){var d=r(n[i]);t[d].references--}for(var c=o(e,a),l=0;l<n.length;l++){var s=r(n[l]);0===t[s].references&&(t[s].updater(),t.splice(s,1))}n=c}}},13(e){var t={};e.exports=function(e,r){var o=function(e){if(void 0===t[e]){var r=document.querySelector(e);if(window.HTMLIFrameElement&&r instanceof window.HTMLIFrameElement)try{r=r.contentDocument.head}catch(e){r=null}t[e]=r}return t[e]}(e);if(!o)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");o.appendChild(r)}},15(e){e.exports=function(e){var t=document.createElement("style");return e.setAttributes(t,e.attributes),e.insert(t,e.options),t}},14(e,t,r){e.exports=function(e){var t=r.nc;t&&e.setAttribute("nonce",t)}},12(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var t=e.insertStyleElement(e);return{update:function(r){var o,a,n;o="",r.supports&&(o+="@supports (".concat(r.supports,") {")),r.media&&(o+="@media ".concat(r.media," {")),(a=void 0!==r.layer)&&(o+="@layer".concat(r.layer.length>0?" ".concat(r.layer):""," {")),o+=r.css,a&&(o+="}"),r.media&&(o+="}"),r.supports&&(o+="}"),(n=r.sourceMap)&&"u">typeof btoa&&(o+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(n))))," */")),e.styleTagTransform(o,t,e.options)},remove:function(){var e;null===(e=t).parentNode||e.parentNode.removeChild(e)}}}},16(e){e.exports=function(e,t){if(t.styleSheet)t.styleSheet.cssText=e;else{for(;t.firstChild;)t.removeChild(t.firstChild);t.appendChild(document.createTextNode(e))}}}}]);